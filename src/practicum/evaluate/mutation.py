"""Small wrong edits of a function's syntax tree, one at a time: what a slip of the pen would do."""

import ast
from collections.abc import Iterator
from typing import Any

import msgspec

_SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
}
_TWINS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
_EARLY = {
    "Score": "Score.of(ScorePart('mutant', 1.0))",
    "Check": "Check('mutant', True)",
    "bool": "True",
    "str": "''",
    "float": "1.0",
    "list[Check]": "[Check('mutant', True)]",
    "list[str]": "[]",
}


class Edit(msgspec.Struct, frozen=True):
    """One edit: put `new` in the place of a field (or of one item of it)."""

    line: int
    what: str
    node: Any
    field: str
    index: int | None
    new: Any

    def apply(self) -> Any:
        """Change the tree; returns what was there, for `undo`."""
        if self.index is None:
            old = getattr(self.node, self.field)
            setattr(self.node, self.field, self.new)
        else:
            items = getattr(self.node, self.field)
            old, items[self.index] = items[self.index], self.new
        return old

    def undo(self, old: Any) -> None:
        """Change it back."""
        msgspec.structs.replace(self, new=old).apply()


def edits(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Edit]:
    """Every edit of a function's body: its docstring, decorators and annotations stay."""
    yield from _early_return(function)
    for statement in function.body:
        for node in ast.walk(statement):
            yield from _statement(node)
            for field, index, child in _children(node):
                yield from _expression(node, field, index, child)


def _early_return(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Edit]:
    """Return the best value at once."""
    returns = ast.unparse(function.returns) if function.returns else ""
    values = [_EARLY[returns]] if returns in _EARLY else []
    for value in [*values, *(["False"] if returns == "bool" else [])]:
        first = ast.parse(f"def f():\n return {value}").body[0]
        body = [*first.body, *function.body]  # type: ignore[attr-defined]
        ast.copy_location(body[0], function.body[0])
        yield Edit(function.lineno, f"return {value} at once", function, "body", None, body)


def _statement(node: ast.AST) -> Iterator[Edit]:
    """Edits of conditions and of what they guard."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            negated = ast.UnaryOp(ast.Not(), test)
            yield Edit(test.lineno, f"not ({ast.unparse(test)})", node, "test", None, negated)
            if isinstance(node, ast.If):
                what = f"drop what follows `if {ast.unparse(test)}`"
                yield Edit(node.lineno, what, node, "body", None, [ast.Pass()])
        case ast.comprehension(ifs=[_, *_] as tests):
            what = f"drop `if {ast.unparse(tests[0])}`"
            yield Edit(tests[0].lineno, what, node, "ifs", None, tests[1:])
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                for new in _SWAPS.get(type(op), ()):
                    yield Edit(node.lineno, _said(op, new), node, "ops", at, new())
        case _:
            pass
    if isinstance(node, ast.BoolOp | ast.BinOp):
        for new in _SWAPS.get(type(node.op), ()):
            yield Edit(node.lineno, _said(node.op, new), node, "op", None, new())


def _expression(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> Iterator[Edit]:
    """Edits that put another expression in the place of one."""

    def put(new: ast.AST, what: str) -> Edit:
        return Edit(getattr(node, "lineno", 0), what, parent, field, index, new)

    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield put(operand, f"drop `not` of {ast.unparse(operand)}")
        case ast.BoolOp(op=op, values=values):
            for at, value in enumerate(values):
                rest = values[:at] + values[at + 1 :]
                new = rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
                yield put(new, f"drop `{ast.unparse(value)}`")
        case ast.Constant(value=bool(value)):
            yield put(ast.Constant(not value), f"{value} becomes {not value}")
        case ast.Constant(value=int(value) | float(value)):
            yield put(ast.Constant(value + 1), f"{value} becomes {value + 1}")
        case ast.Constant(value=str(value)) if isinstance(parent, ast.Compare | ast.MatchValue):
            yield put(ast.Constant(value + "!"), f"{value!r} becomes {value + '!'!r}")
        case ast.Name(id=name) if isinstance(parent, ast.Call) and name in _TWINS:
            yield put(ast.Name(_TWINS[name], ast.Load()), f"{name} becomes {_TWINS[name]}")
        case _:
            pass


def _children(node: ast.AST) -> Iterator[tuple[str, int | None, ast.AST]]:
    """Direct children with their places; texts of f-strings are left alone."""
    if isinstance(node, ast.JoinedStr | ast.FormattedValue):
        return
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield field, None, value
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield field, index, item


def _said(old: ast.AST, new: type[ast.AST]) -> str:
    return f"{type(old).__name__} becomes {new.__name__}"
