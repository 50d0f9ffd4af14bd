"""Secret arguments at rest: encrypted with Fernet (cryptography), readable only by who holds the key."""

from typing import TYPE_CHECKING

from settled.state.errors import ContractError

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

HIDDEN = "•••"
"""What is shown in place of a secret."""

_MARK = "$secret"


class Vault:
    """Seals and opens secret values. `key` is a Fernet key (`cryptography.fernet.Fernet.generate_key()`), or None: no
    secrets.
    """

    def __init__(self, key: str | None) -> None:
        self._key = key

    def seal(self, text: str) -> dict[str, str]:
        """Return the encrypted form of a JSON text, itself JSON; ContractError without a key."""
        return {_MARK: self._fernet().encrypt(text.encode()).decode("ascii")}

    def open(self, sealed: dict[str, str]) -> str:
        """Return the JSON text that `seal` was given."""
        return self._fernet().decrypt(sealed[_MARK].encode("ascii")).decode()

    def _fernet(self) -> "Fernet":
        from cryptography.fernet import Fernet  # loads in 100 ms, and only secrets need it

        if self._key is None:
            raise ContractError(
                "a Secret() argument needs a key: pass secret_key= to Ledger.connect, or set SETTLED_SECRET_KEY"
            )
        return Fernet(self._key)


def is_sealed(value: object) -> bool:
    """Whether a stored value is the encrypted form of a secret."""
    return isinstance(value, dict) and set(value) == {_MARK}
