"""Secret arguments at rest: encrypted with Fernet (cryptography), readable only by who holds the key."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard

from settled.state.errors import ContractError, SettledError

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

HIDDEN = "•••"
"""What is shown in place of a secret."""

_MARK = "$secret"


class UnreadableSecret(SettledError):
    """A stored secret that none of the keys opens."""


class Vault:
    """Seals and opens secret values.

    `keys` are Fernet keys (`cryptography.fernet.Fernet.generate_key()`) with commas between them: the first one seals,
    all of them open, so that a key can be replaced. None: no secrets.
    """

    def __init__(self, keys: str | None) -> None:
        self._keys = keys

    def seal(self, text: str) -> dict[str, str]:
        """Return the encrypted form of a JSON text, itself JSON; ContractError without a proper key."""
        return {_MARK: self._fernet().encrypt(text.encode()).decode("ascii")}

    def open(self, sealed: Mapping[str, str]) -> str:
        """Return the JSON text that `seal` was given; UnreadableSecret where no key fits."""
        from cryptography.fernet import InvalidToken

        try:
            return self._fernet().decrypt(sealed[_MARK].encode("ascii")).decode()
        except (InvalidToken, ContractError, ValueError) as error:
            raise UnreadableSecret("is sealed with a key that this process does not have") from error

    def _fernet(self) -> "MultiFernet":
        from cryptography.fernet import Fernet, MultiFernet  # loads in 100 ms, and only secrets need it

        if self._keys is None:
            raise ContractError(
                "a Secret() argument needs a key: pass secret_key= to Ledger.connect, or set SETTLED_SECRET_KEY"
            )
        try:
            return MultiFernet([Fernet(key.strip()) for key in self._keys.split(",")])
        except ValueError as error:
            raise ContractError(
                "SETTLED_SECRET_KEY must be made by cryptography.fernet.Fernet.generate_key()"
            ) from error


def masked(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return stored arguments as anybody may see them: with the secret ones hidden."""
    return {name: HIDDEN if is_sealed(value) else value for name, value in arguments.items()}


def is_sealed(value: object) -> TypeGuard[Mapping[str, str]]:
    """Whether a stored value is the encrypted form of a secret."""
    return isinstance(value, dict) and set(value) == {_MARK} and isinstance(value[_MARK], str)
