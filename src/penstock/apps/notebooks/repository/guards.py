"""The environment and the settings of every git process.

Git runs programs that are named by its configuration, its environment, hooks and attributes. Three
layers keep it from running anything that a folder contains:

1. Git processes never read the configuration of a repository. They read one that the server has
   derived from it (see `configuration`), which contains only values from an allow-list.
2. Every process gets the settings in `GUARDS`, which override every file.
3. The environment is built from an allow-list.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_OFF = "false"
"""As a command, a program that does nothing and fails; as a value, false."""


class Guard(NamedTuple):
    """A git setting that runs a program, or leads to one."""

    setting: str
    """Its name; `*` stands for the name of a driver, tool, remote or the like."""
    value: str | None
    """The value that disables it; None where none does, so that only layer 1 protects."""


GUARDS: tuple[Guard, ...] = (
    # Discovery, hooks and monitors
    Guard("safe.bareRepository", "explicit"),
    Guard("core.hooksPath", os.devnull),
    Guard("core.fsmonitor", _OFF),
    Guard("core.worktree", None),
    Guard("init.templateDir", ""),
    Guard("hook.*.command", None),
    # Included configuration
    Guard("include.path", None),
    Guard("includeIf.*.path", None),
    # Filters, and drivers that attributes name
    Guard("filter.*.clean", None),
    Guard("filter.*.smudge", None),
    Guard("filter.*.process", None),
    Guard("diff.external", None),  # `--no-ext-diff` in every command that shows a difference
    Guard("diff.*.command", None),
    Guard("diff.*.textconv", None),  # and `--no-textconv`
    Guard("merge.*.driver", None),
    Guard("interactive.diffFilter", "cat"),
    # Signatures
    Guard("gpg.program", _OFF),
    Guard("gpg.openpgp.program", _OFF),
    Guard("gpg.x509.program", _OFF),
    Guard("gpg.ssh.program", _OFF),
    Guard("gpg.ssh.defaultKeyCommand", _OFF),
    Guard("commit.gpgSign", _OFF),
    Guard("tag.gpgSign", _OFF),
    Guard("tag.forceSignAnnotated", _OFF),
    Guard("push.gpgSign", _OFF),
    Guard("log.showSignature", _OFF),
    Guard("merge.verifySignatures", _OFF),
    # Transports, including those that fetch missing objects of a partial clone
    Guard("protocol.allow", "never"),
    *(
        Guard(f"protocol.{name}.allow", "never")
        for name in ("ext", "file", "git", "ssh", "http", "https")
    ),
    Guard("core.sshCommand", _OFF),
    Guard("core.gitProxy", "none"),
    Guard("core.askPass", _OFF),
    Guard("core.alternateRefsCommand", _OFF),
    Guard("credential.helper", ""),  # an empty value clears the list
    Guard("credential.*.helper", None),
    Guard("uploadpack.packObjectsHook", _OFF),
    Guard("extensions.partialClone", None),
    Guard("remote.*.promisor", None),
    Guard("remote.*.url", None),
    Guard("remote.*.vcs", None),
    Guard("remote.*.uploadpack", None),
    Guard("remote.*.receivepack", None),
    Guard("url.*.insteadOf", None),
    Guard("imap.tunnel", _OFF),
    # Submodules
    Guard("submodule.recurse", _OFF),
    Guard("submodule.*.update", None),
    Guard("fetch.recurseSubmodules", _OFF),
    Guard("diff.submodule", "short"),
    Guard("diff.ignoreSubmodules", "all"),
    Guard("status.submoduleSummary", _OFF),
    # Maintenance, which runs a hook and other processes
    Guard("gc.auto", "0"),
    Guard("maintenance.auto", _OFF),
    Guard("gc.recentObjectsHook", _OFF),
    # Interactive use
    Guard("core.editor", _OFF),
    Guard("sequence.editor", _OFF),
    Guard("core.pager", "cat"),
    Guard("pager.*", None),
    Guard("alias.*", None),
    Guard("help.autoCorrect", "never"),
    Guard("trailer.*.command", None),
    Guard("trailer.*.cmd", None),
    Guard("tar.*.command", None),
    Guard("web.browser", _OFF),
    Guard("browser.*.cmd", None),
    Guard("man.*.cmd", None),
    Guard("difftool.*.cmd", None),
    Guard("mergetool.*.cmd", None),
    Guard("guitool.*.cmd", None),
    Guard("sendemail.toCmd", _OFF),
    Guard("sendemail.ccCmd", _OFF),
)

_BEHAVIOUR = {
    # Not for protection; they override what a repository sets.
    "core.quotePath": "false",
    "core.splitIndex": "false",
    # Objects are flushed together: one by one, 10,000 files take more than ten seconds.
    "core.fsync": "committed,loose-object",
    "core.fsyncMethod": "batch",
    "i18n.commitEncoding": "UTF-8",
    "i18n.logOutputEncoding": "UTF-8",
}

_INHERITED = (
    *("HOME", "XDG_CONFIG_HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "LD_LIBRARY_PATH"),
    "SSL_CERT_FILE",  # for a trusted filter that downloads what it needs
)

_FIXED = {
    "LC_ALL": "C",
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_ASKPASS": "",
    "GIT_EDITOR": _OFF,
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_SSH_COMMAND": _OFF,
    "GIT_TERMINAL_PROMPT": "0",
}

_OWN_FILES_OFF = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}


def environment(*, reads_own_files: bool = False) -> dict[str, str]:
    """Return the environment of a git process.

    With `reads_own_files` it reads the configuration of the machine and of the server's user, for
    commands that only show configuration.
    """
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    settings = {one.setting: one.value for one in GUARDS if one.value is not None} | _BEHAVIOUR
    return {
        **inherited,
        "PATH": _path(os.environ),
        **_FIXED,
        **({} if reads_own_files else _OWN_FILES_OFF),
        **_numbered(settings),
    }


def _path(given: Mapping[str, str]) -> str:
    """Return `PATH` without relative entries, which would lead into the folder of a notebook."""
    entries = given.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(one for one in entries if Path(one).is_absolute())


def _numbered(settings: Mapping[str, str]) -> dict[str, str]:
    """Encode settings for git's environment."""
    numbered = {"GIT_CONFIG_COUNT": str(len(settings))}
    for n, (name, value) in enumerate(settings.items()):
        numbered |= {f"GIT_CONFIG_KEY_{n}": name, f"GIT_CONFIG_VALUE_{n}": value}
    return numbered
