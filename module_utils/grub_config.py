"""Which menu entry GRUB boots next, found the way GRUB does: by running its configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

#: What GRUB sets before it reads its configuration, as far as generated configurations ask for it.
FEATURES = {
    f"feature_{name}": "y"
    for name in ("menuentry_id", "timeout_style", "platform_search_hint", "default_font_path", "all_video_module", "200_final")
}
_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r]+|\\\n|(?<![^\s;{}])\#[^\n]*)
    |(?P<end>[\n;{}])
    |'(?P<literal>[^']*)'
    |"(?P<quoted>(?:\\.|[^"\\])*)"
    |\\(?P<escaped>.)
    |\$(?:\{(?P<braced>[^}]+)\}|(?P<name>[A-Za-z_]\w*|[0-9?@\#*]))
    |(?P<plain>[^\s;'"\\${}|&<>]+)""",
    re.VERBOSE | re.DOTALL,
)
_IN_QUOTES = re.compile(r'\\(?P<escaped>["$\\\n])|\$(?:\{(?P<braced>[^}]+)\}|(?P<name>[A-Za-z_]\w*|[0-9?@#*]))', re.DOTALL)
_NOT_FOLLOWED = ("for", "while", "until", "select", "eval", "configfile", "normal", "blscfg")
_WITH_BLOCK = ("menuentry", "submenu", "function")
_WITH_VALUE = ("--class", "--users", "--hotkey", "--id", "--source")


class NotUnderstoodError(Exception):
    """The configuration uses what this reader does not follow, or what GRUB would not accept either."""


class Part(NamedTuple):
    """A piece of a word: text, or the name of a variable."""

    text: str
    variable: bool
    quoted: bool


Word = list[Part]


@dataclass(frozen=True)
class Command:
    """A command with its words and, of a menu entry, a submenu or a function, its block."""

    words: list[Word]
    block: list[Command | Branches] | None = None


@dataclass(frozen=True)
class Branches:
    """An if: conditions with what follows each; the last condition is empty for else."""

    arms: list[tuple[list[Command | Branches], list[Command | Branches]]]


Commands = list["Command | Branches"]


@dataclass
class Entry:
    """An entry of the menu; once it was run, with the paths of its kernel and initramfs as the configuration writes them."""

    title: str
    id: str
    block: Commands
    submenu: bool
    arguments: list[str]
    #: Whether only users may boot it; they count once superusers is set.
    restricted: bool = True
    linux: str | None = None
    initrd: list[str] = field(default_factory=list)
    #: Why GRUB waits for a person before it boots it, each with the remedy.
    waits: list[str] = field(default_factory=list)


def _words(text: str) -> Iterator[Word | str]:
    """Cut a script into words and, as strings, the braces and ends of commands, which need no blank beside them."""
    position = 0
    word: Word | None = None
    while position < len(text):
        match = _TOKEN.match(text, position)
        if not match:
            rest = text[position : position + 40]
            raise NotUnderstoodError(f"a quote is never closed: {rest!r}" if rest[0] in "'\"" else f"GRUB accepts no {rest!r}")
        position, kind = match.end(), match.lastgroup
        if kind in ("skip", "end"):
            if word is not None:
                yield word
                word = None
            if kind == "end":
                yield match["end"]
            continue
        word = [] if word is None else word
        if kind == "quoted":
            word += _quoted(match["quoted"])
        elif kind in ("braced", "name"):
            word.append(Part(match[kind], variable=True, quoted=False))
        else:
            word.append(Part(match[kind or ""], variable=False, quoted=kind != "plain"))
    if word is not None:
        yield word
    yield "\n"


def _quoted(text: str) -> Iterator[Part]:
    position = 0
    for match in _IN_QUOTES.finditer(text):
        yield Part(text[position : match.start()], variable=False, quoted=True)
        name = match["braced"] or match["name"]
        yield Part(name or match["escaped"].replace("\n", ""), variable=bool(name), quoted=True)
        position = match.end()
    yield Part(text[position:], variable=False, quoted=True)


def _bare(token: Word | str | None) -> str | None:
    """A word's text if it is plain, as keywords are; a string (a brace or the end of a command) as it is."""
    if token is None or isinstance(token, str):
        return token
    return token[0].text if len(token) == 1 and not token[0].variable and not token[0].quoted else None


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = list(_words(text))
        self.position = 0

    def peek(self) -> str | None:
        return _bare(self.tokens[self.position]) if self.position < len(self.tokens) else "end of file"

    def next(self) -> Word | str:
        self.position += 1
        return self.tokens[self.position - 1]

    def expect(self, keyword: str) -> None:
        if self.peek() != keyword:
            raise NotUnderstoodError(f"{keyword!r} is missing")
        self.next()

    def commands(self, *until: str) -> Commands:
        """Read commands up to one of the keywords, which stays."""
        found: Commands = []
        while self.peek() not in (*until, "end of file"):
            if self.peek() in ("\n", ";"):
                self.next()
                continue
            found.append(self.branches() if self.peek() == "if" else self.command())
            if self.peek() not in ("\n", ";", "}", "end of file"):
                raise NotUnderstoodError("a command follows on another in the same line")
        if self.peek() not in until:
            raise NotUnderstoodError(f"{' or '.join(until)!r} is missing at the end")
        if not found and "end of file" not in until:
            raise NotUnderstoodError(f"{self.peek()!r} follows on nothing")
        return found

    def branches(self) -> Branches:
        arms = []
        while self.peek() in ("if", "elif"):
            self.next()
            condition = self.commands("then")
            self.expect("then")
            arms.append((condition, self.commands("elif", "else", "fi")))
        if self.peek() == "else":
            self.next()
            arms.append(([], self.commands("fi")))
        self.expect("fi")
        return Branches(arms)

    def command(self) -> Command:
        words: list[Word] = []
        while (bare := self.peek()) not in ("\n", ";", "{", "}", "end of file"):
            words.append(self.next())  # type: ignore[arg-type]  # the strings were sorted out above
            if len(words) == 2 and _bare(words[0]) == "function":  # noqa: PLR2004  # its name
                self.skip_lines()
        if not words:
            raise NotUnderstoodError(f"a {bare!r} is too much")
        if bare != "{":
            return Command(words)
        self.next()
        block = self.commands("}")
        self.expect("}")
        return Command(words, block)

    def skip_lines(self) -> None:
        while self.peek() == "\n" and self.position < len(self.tokens):
            self.next()


class _ReturnError(Exception):
    """A function ends early."""


class _Shell:
    """What GRUB remembers while it runs a script."""

    def __init__(self, variables: dict[str, str], is_file: Callable[[str, bool], bool], read: Callable[[str], str]) -> None:
        self.variables, self.is_file, self.read = variables, is_file, read
        # What a submenu inherits; and what is written to the environment block for later boots.
        self.exported, self.saved = set(variables) | {"chosen"}, dict[str, str]()
        self.functions: dict[str, Commands] = {}
        self.menu: list[Entry] = []
        # What the script itself loads, where it has no menu.
        self.entry = Entry("", "", [], submenu=False, arguments=[])
        self.status = 0

    def expand(self, words: list[Word]) -> list[str]:
        """Replace variables; unquoted ones fall apart at blanks and vanish when empty, as in a shell."""
        expanded: list[str] = []
        for word in words:
            text, exists = "", False
            for part in word:
                value = self.value(part.text) if part.variable else part.text
                if part.variable and not part.quoted and re.search(r"\s", value):
                    *first, value = (text + value).split()
                    expanded += first
                    text = ""
                text += value
                exists = exists or part.quoted or bool(value)
            if exists:
                expanded.append(text)
        return expanded

    def value(self, name: str) -> str:
        return str(self.status) if name == "?" else self.variables.get(name, "")

    def run(self, commands: Commands) -> int:
        for command in commands:
            if isinstance(command, Branches):
                for condition, body in command.arms:
                    if not condition or self.run(condition) == 0:
                        self.run(body)
                        break
            else:
                self.status = self.call(command)
        return self.status

    def call(self, command: Command) -> int:
        words = self.expand(command.words)
        if not words:
            return 0
        if words[0] in _NOT_FOLLOWED:
            raise NotUnderstoodError(f"it uses {words[0]!r}")
        return self.execute(words) if command.block is None else self.define(words[0], words[1:], command.block)

    def execute(self, words: list[str]) -> int:
        name, *arguments = ["set", *words] if "=" in words[0] else words
        if name in _WITH_BLOCK:
            raise NotUnderstoodError(f"a {name!r} has no block")
        if name in self.functions:
            return self.function(name, arguments)
        builtins: dict[str, Callable[[list[str]], int]] = {
            "!": lambda command: int(not command or self.execute(command) == 0),
            "[": lambda condition: int(not self.test(condition[:-1])),
            "test": lambda condition: int(not self.test(condition)),
            "set": self.set,
            "unset": self.unset,
            "load_env": self.load_env,
            "save_env": self.save_env,
            "export": self.export,
            "source": self.source,
            ".": self.source,
            "return": self.leave,
            # It compares the graphics adapter with a list, on which no server's is.
            "hwmatch": lambda _: self.set(["match=0"]),
            **dict.fromkeys(("linux", "linux16", "linuxefi"), self.linux),
            **dict.fromkeys(("initrd", "initrd16", "initrdefi"), self.initrd),
            # No key is held down and no button pressed.
            **dict.fromkeys(("false", "keystatus", "cmostest"), lambda _: 1),
        }
        # Any other command, such as insmod or search, is taken to succeed.
        return builtins[name](arguments) if name in builtins else 0

    def set(self, assignments: list[str]) -> int:
        for assignment in assignments:
            key, equals, value = assignment.partition("=")
            if equals:
                self.variables[key] = value
        return 0

    def unset(self, names: list[str]) -> int:
        for name in names:
            self.variables.pop(name, None)
        return 0

    def source(self, paths: list[str]) -> int:
        if not paths:
            raise NotUnderstoodError("it uses 'source' without a file")
        return self.run(parse(self.read(paths[0])))

    def leave(self, _: list[str]) -> int:
        raise _ReturnError

    def linux(self, arguments: list[str]) -> int:
        self.entry.linux = next((argument for argument in arguments if not argument.startswith("--")), None)
        return 0

    def initrd(self, arguments: list[str]) -> int:
        self.entry.initrd += [argument for argument in arguments if not argument.startswith("--")]
        return 0

    def define(self, name: str, arguments: list[str], block: Commands) -> int:
        if name == "function" and len(arguments) == 1:
            self.functions[arguments[0]] = block
        elif name in ("menuentry", "submenu"):
            title, identity, rest = None, None, iter(arguments)
            others = []
            options = {argument.partition("=")[0] for argument in arguments}
            for argument in rest:
                if argument in _WITH_VALUE:
                    value = next(rest, "")
                    identity = value if argument == "--id" else identity
                elif argument.startswith("--id="):
                    identity = argument[5:]
                elif argument.startswith("--"):
                    continue
                elif title is None:
                    title = argument
                else:
                    others.append(argument)
            title = title or ""
            restricted = "--users" in options or "--unrestricted" not in options
            self.menu.append(Entry(title, identity or title, block, name == "submenu", [title, *others], restricted))
        else:
            raise NotUnderstoodError(f"it uses {name!r} with a block")
        return 0

    def function(self, name: str, arguments: list[str]) -> int:
        outer = self.variables
        inner = {str(number): argument for number, argument in enumerate(arguments, 1)}
        before = {key: outer.pop(key) for key in list(outer) if key.isdigit()}
        outer.update(inner)
        try:
            self.run(self.functions[name])
        except _ReturnError:
            pass
        finally:
            for key in inner:
                outer.pop(key, None)
            outer.update(before)
        return self.status

    def load_env(self, arguments: list[str]) -> int:
        path, names, rest = f"{self.value('prefix')}/grubenv", [], iter(arguments)
        for argument in rest:
            if argument in ("-f", "--file"):
                path = next(rest, path)
            elif not argument.startswith("-"):
                names.append(argument)
        try:
            saved = {**environment(self.read(path)), **self.saved}
        except OSError:
            return 1
        self.variables.update({key: value for key, value in saved.items() if not names or key in names})
        return 0

    def save_env(self, arguments: list[str]) -> int:
        self.saved.update({name: self.value(name) for name in arguments if name in self.variables})
        return 0

    def export(self, names: list[str]) -> int:
        self.exported.update(names)
        return 0

    def waits(self, entry: Entry) -> Iterator[str]:
        """Say why GRUB waits for a person before it runs an entry of the menu (menu.c, auth.c)."""
        timeout = self.variables.get("timeout")
        # It takes the number that the text begins with, and waits where there is none, as before "-1".
        if not re.match(r"\s*\d", timeout or ""):
            told = "no timeout is set" if timeout is None else f"timeout is {timeout!r}"
            yield (
                f"GRUB shows its menu until somebody chooses, since {told}; set GRUB_TIMEOUT to a number of seconds in "
                f"/etc/default/grub and run `update-grub`"
            )
        if entry.restricted and "superusers" in self.variables:
            yield (
                f"GRUB asks for a user and a password before it runs the entry {entry.title!r}, since superusers is set; add "
                f"--unrestricted to that entry (to CLASS in /etc/grub.d/10_linux) and run `update-grub`"
            )

    def test(self, words: list[str]) -> bool:
        """Evaluate the words of a condition; -o binds weaker than -a."""
        for joint, judge in (("-o", any), ("-a", all)):
            if joint in words[1:-1]:
                place = words.index(joint, 1)
                return judge([self.test(words[:place]), self.test(words[place + 1 :])])
        if words[:1] == ["!"]:
            return not self.test(words[1:])
        if len(words) == 3:  # noqa: PLR2004  # left, operator, right
            return _compare(*words)
        if len(words) == 2:  # noqa: PLR2004  # operator, operand
            kind, operand = words
            if kind in ("-z", "-n"):
                return (operand == "") == (kind == "-z")
            if kind in ("-f", "-e", "-s", "-d"):
                return self.is_file(operand, kind == "-s")
            raise NotUnderstoodError(f"it uses the test {kind!r}")
        if len(words) > 1:
            raise NotUnderstoodError(f"it uses the test {' '.join(words)!r}")
        return words not in ([], [""])


def _compare(left: str, operator: str, right: str) -> bool:
    if operator in ("=", "==", "!="):
        return (left == right) != (operator == "!=")
    numbers = {"-eq": (0,), "-ne": (-1, 1), "-lt": (-1,), "-le": (-1, 0), "-gt": (1,), "-ge": (0, 1)}
    if operator not in numbers or not re.fullmatch(r"-?\d+ -?\d+", f"{left} {right}"):
        raise NotUnderstoodError(f"it uses the test {left} {operator} {right}")
    first, second = int(left), int(right)
    return (first > second) - (first < second) in numbers[operator]


def environment(text: str) -> dict[str, str]:
    """Read the variables of an environment block (grubenv); a backslash protects the character after it."""
    lines = re.findall(r"^([^#\n=][^\n=]*)=((?:\\.|[^\n\\])*)$", text, re.MULTILINE | re.DOTALL)
    return {key: re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL) for key, value in lines}


def parse(text: str) -> Commands:
    """Read a script.

    Raises:
        NotUnderstoodError: it is no script that GRUB would accept.
    """
    return _Parser(text).commands("end of file")


def _chosen(menu: list[Entry], default: str) -> tuple[Entry, str]:
    """Return the entry of a menu that a default means, and what is left of the default for the submenu.

    As in GRUB a default is a number, a title or an id; ">" leads into a submenu, ">>" is a ">" of the name; and what means
    no entry means the first.
    """
    own, rest = re.fullmatch(r"((?:>>|[^>])*)(?:>(.*))?", default, re.DOTALL).groups()  # type: ignore[union-attr]  # fits all
    name = own.replace(">>", ">")
    if re.fullmatch(r"\d+", name):
        number = int(name)
    else:
        number = next((number for number, entry in enumerate(menu) if name in (entry.title, entry.id)), 0)
    return menu[number if number < len(menu) else 0], rest or ""


def next_entry(text: str, variables: dict[str, str], is_file: Callable[[str, bool], bool], read: Callable[[str], str]) -> Entry:
    """Run a configuration and return the entry that GRUB boots when nobody is at the keyboard.

    Args:
        text: the configuration, such as /boot/grub/grub.cfg.
        variables: what GRUB sets before (prefix, grub_platform, ...); FEATURES are added.
        is_file: whether a path exists; with the second argument true, whether it is not empty either.
        read: the text of a file; OSError if there is none.

    Raises:
        NotUnderstoodError: the configuration uses what is not followed here, or has no menu.
    """
    try:
        entry, saved = _boot(text, _Shell({**FEATURES, **variables}, is_file, read))
        # Ubuntu's GRUB_FORCE_PARTUUID: a kernel that comes up without its initramfs, or panics; the next boot gives it one.
        if not entry.initrd and saved.get("initrdfail") == "1":
            again = _Shell({**FEATURES, **variables}, is_file, read)
            again.saved = saved
            second, _ = _boot(text, again)
            entry.initrd = second.initrd if second.linux == entry.linux else []
    except _ReturnError:
        raise NotUnderstoodError("it uses 'return' outside of a function") from None
    except RecursionError:
        raise NotUnderstoodError("a function or file of it calls itself") from None
    return entry


def _boot(text: str, shell: _Shell) -> tuple[Entry, dict[str, str]]:
    """Run a configuration; return the entry that is booted, and what the environment block is told meanwhile."""
    shell.run(parse(text))
    if not shell.menu and shell.entry.linux:
        return shell.entry, shell.saved
    waits: list[str] = []
    while shell.menu:
        entry, rest = _chosen(shell.menu, shell.value("default"))
        waits += shell.waits(entry)
        if entry.submenu:
            inherited = {name: value for name, value in shell.variables.items() if name in shell.exported}
            shell.variables = {**inherited, "timeout": "0"}
        shell.menu, shell.entry = [], entry
        arguments = {str(number): text for number, text in enumerate(entry.arguments, 1)}
        shell.variables.update(chosen=entry.title, default=rest, **arguments)
        shell.run(entry.block)
        if not entry.submenu:
            entry.waits = waits
            return entry, shell.saved
    raise NotUnderstoodError("it has no menu entry")
