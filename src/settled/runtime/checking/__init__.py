"""The pre-launch checklist of `settled check`: what each file owns.

`catalogue` is the checklist as data, `subject` imports the user's module, `files`, `reach` and `calls` read its source
(what a body reaches, and what it sends), the `of_*` files find, `allows` reads the author's own word on a finding, and
`report` puts it together. Nothing here runs a tool or writes a row: only the import of the module is carried out.
"""
