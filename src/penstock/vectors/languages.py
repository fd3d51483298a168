"""Programming languages that are split by definition: names, suffixes, grammar nodes."""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

import msgspec

from penstock.core.errors import ConfigurationError

if TYPE_CHECKING:
    from tree_sitter import Language as Grammar
    from tree_sitter import Tree

CONTAINERS = frozenset({"class", "enum", "impl", "interface", "module", "struct", "trait"})
"""Types of definitions that contain other definitions."""


class Language(msgspec.Struct, frozen=True, eq=False):
    """A programming language, and the nodes of its grammar that make up chunks.

    `definitions` maps kinds of nodes to types of chunks. A node of a kind in `wraps` belongs to
    the single definition inside it. The search for definitions descends into `through`.
    """

    name: str
    endings: tuple[str, ...]
    grammar: str
    definitions: dict[str, str]
    wraps: frozenset[str] = frozenset()
    through: frozenset[str] = frozenset()
    entry: str = "language"


_JAVASCRIPT = {
    "function_declaration": "function",
    "generator_function_declaration": "function",
    "class_declaration": "class",
    "method_definition": "method",
    "lexical_declaration": "function",
    "variable_declaration": "function",
}
_TYPESCRIPT = {
    **_JAVASCRIPT,
    "abstract_class_declaration": "class",
    "interface_declaration": "interface",
    "enum_declaration": "enum",
    "type_alias_declaration": "type",
    "internal_module": "module",
    "module": "module",
}
_TYPESCRIPT_WRAPS = frozenset({"export_statement", "ambient_declaration", "expression_statement"})
_C = {
    "function_definition": "function",
    "struct_specifier": "struct",
    "union_specifier": "struct",
    "enum_specifier": "enum",
    "type_definition": "type",
}
_C_THROUGH = frozenset(
    {"preproc_ifdef", "preproc_if", "preproc_else", "linkage_specification", "declaration_list"}
)

LANGUAGES = (
    Language(
        "python",
        (".py", ".pyi", ".pyw"),
        "tree_sitter_python",
        {"function_definition": "function", "class_definition": "class"},
        frozenset({"decorated_definition"}),
        frozenset({"block"}),
    ),
    Language(
        "javascript",
        (".js", ".jsx", ".mjs", ".cjs"),
        "tree_sitter_javascript",
        _JAVASCRIPT,
        frozenset({"export_statement"}),
        frozenset({"class_body"}),
    ),
    Language(
        "typescript",
        (".ts", ".mts", ".cts"),
        "tree_sitter_typescript",
        _TYPESCRIPT,
        _TYPESCRIPT_WRAPS,
        frozenset({"class_body", "statement_block"}),
        "language_typescript",
    ),
    Language(
        "typescript",
        (".tsx",),
        "tree_sitter_typescript",
        _TYPESCRIPT,
        _TYPESCRIPT_WRAPS,
        frozenset({"class_body", "statement_block"}),
        "language_tsx",
    ),
    Language(
        "go",
        (".go",),
        "tree_sitter_go",
        {
            "function_declaration": "function",
            "method_declaration": "method",
            "type_declaration": "type",
        },
    ),
    Language(
        "rust",
        (".rs",),
        "tree_sitter_rust",
        {
            "function_item": "function",
            "struct_item": "struct",
            "union_item": "struct",
            "enum_item": "enum",
            "trait_item": "trait",
            "impl_item": "impl",
            "mod_item": "module",
            "macro_definition": "macro",
        },
        through=frozenset({"declaration_list"}),
    ),
    Language(
        "java",
        (".java",),
        "tree_sitter_java",
        {
            "class_declaration": "class",
            "record_declaration": "class",
            "interface_declaration": "interface",
            "annotation_type_declaration": "interface",
            "enum_declaration": "enum",
            "method_declaration": "method",
            "constructor_declaration": "method",
        },
        through=frozenset({"class_body", "interface_body", "enum_body", "enum_body_declarations"}),
    ),
    Language("c", (".c", ".h"), "tree_sitter_c", _C, through=_C_THROUGH),
    Language(
        "cpp",
        (".cpp", ".cc", ".cxx", ".hpp", ".hh", ".hxx"),
        "tree_sitter_cpp",
        {**_C, "class_specifier": "class", "namespace_definition": "module"},
        frozenset({"template_declaration"}),
        _C_THROUGH | {"field_declaration_list"},
    ),
    Language(
        "csharp",
        (".cs",),
        "tree_sitter_c_sharp",
        {
            "class_declaration": "class",
            "record_declaration": "class",
            "struct_declaration": "struct",
            "interface_declaration": "interface",
            "enum_declaration": "enum",
            "namespace_declaration": "module",
            "method_declaration": "method",
            "constructor_declaration": "method",
        },
        through=frozenset({"declaration_list", "file_scoped_namespace_declaration"}),
    ),
    Language(
        "ruby",
        (".rb", ".rake"),
        "tree_sitter_ruby",
        {"method": "method", "singleton_method": "method", "class": "class", "module": "module"},
        through=frozenset({"body_statement"}),
    ),
)

LANGUAGES_BY_SUFFIX = {suffix: language for language in LANGUAGES for suffix in language.endings}
"""The language of a file by the suffix of its name, in lower case."""


@cache
def grammar_of(language: Language) -> "Grammar":
    """Return the grammar of a language from its installed package; it is loaded once."""
    try:
        from tree_sitter import Language as Grammar

        module = import_module(language.grammar)
    except ImportError as error:
        raise ConfigurationError(
            f"splitting source code requires the package {error.name}: "
            "pip install 'penstock[vectors]'"
        ) from error
    return Grammar(getattr(module, language.entry)())


def parse(language: Language, text: str) -> "Tree":
    """Return the syntax tree of a text, from a new parser: parsers are not thread-safe."""
    from tree_sitter import Parser

    return Parser(grammar_of(language)).parse(text.encode("utf-8", "replace"))
