import type { Value } from "../python/index.ts";
import type { Args, CompareExpr, Comparison, Expr, FilterExpr, Operator } from "./nodes.ts";
import type { TokenStream } from "./token-stream.ts";

/** Deeper expressions would overflow the stack of whatever walks through them. */
const DEPTH_MAX = 200;

const COMPARISONS: ReadonlySet<string> = new Set(["==", "!=", "<", "<=", ">", ">="]);
const CONSTANTS: ReadonlyMap<string, Value> = new Map<string, Value>([
  ...([
    ["true", true],
    ["True", true],
    ["false", false],
    ["False", false],
  ] as const),
  ...([
    ["none", null],
    ["None", null],
  ] as const),
]);
const NO_ARGS: Args = { args: [], kwargs: [], star: null, doubleStar: null };

/** The expressions of Jinja's grammar, with its precedence. */
export class ExpressionParser {
  readonly #stream: TokenStream;
  #depth = 0;

  constructor(stream: TokenStream) {
    this.#stream = stream;
  }

  /** `a if b else c`, and everything that binds closer. */
  expression(): Expr {
    if (++this.#depth > DEPTH_MAX) this.#stream.fail("an expression is nested too deeply");
    let then = this.#or();
    while (this.#stream.takes("name", "if")) {
      const test = this.#or();
      const otherwise = this.#stream.takes("name", "else") ? this.expression() : null;
      then = { kind: "condition", test, then, otherwise };
    }
    this.#depth--;
    return then;
  }

  /** One expression, or several with commas between them. */
  tuple(isConditional = true, isEnd: () => boolean = () => false, mayBeEmpty = false): Expr {
    const items: Expr[] = [];
    let isTuple = false;
    while (!this.#endsTuple(isEnd)) {
      items.push(isConditional ? this.expression() : this.#or());
      if (!this.#stream.takes("op", ",")) break;
      isTuple = true;
    }
    if (!isTuple && items.length === 1) return items[0]!;
    if (!isTuple && !mayBeEmpty) this.#stream.fail("expected an expression");
    return { kind: "tuple", items };
  }

  #endsTuple(isEnd: () => boolean): boolean {
    return this.#stream.is("end") || this.#stream.isOp(")") || isEnd();
  }

  #or(): Expr {
    let left = this.#and();
    while (this.#stream.takes("name", "or")) left = { kind: "or", left, right: this.#and() };
    return left;
  }

  #and(): Expr {
    let left = this.#not();
    while (this.#stream.takes("name", "and")) left = { kind: "and", left, right: this.#not() };
    return left;
  }

  #not(): Expr {
    let count = 0;
    while (this.#stream.takes("name", "not")) count++;
    let value = this.#compare();
    while (count-- > 0) value = { kind: "unary", op: "not", of: value };
    return value;
  }

  #compare(): Expr {
    const first = this.#sum();
    const rest: { op: Comparison; value: Expr }[] = [];
    for (;;) {
      const { current, following } = this.#stream;
      if (current.kind === "op" && COMPARISONS.has(current.text)) {
        this.#stream.next();
        rest.push({ op: current.text as Comparison, value: this.#sum() });
      } else if (this.#stream.takes("name", "in")) {
        rest.push({ op: "in", value: this.#sum() });
      } else if (this.#stream.isName("not") && following.text === "in") {
        this.#stream.next();
        this.#stream.next();
        rest.push({ op: "not in", value: this.#sum() });
      } else break;
    }
    return rest.length === 0 ? first : ({ kind: "compare", first, rest } satisfies CompareExpr);
  }

  #sum(): Expr {
    return this.#binary(["+", "-"], () => this.#concat());
  }

  #concat(): Expr {
    const parts = [this.#product()];
    while (this.#stream.takes("op", "~")) parts.push(this.#product());
    return parts.length === 1 ? parts[0]! : { kind: "concat", parts };
  }

  #product(): Expr {
    return this.#binary(["*", "/", "//", "%"], () => this.#power());
  }

  #power(): Expr {
    return this.#binary(["**"], () => this.#unary());
  }

  #binary(operators: readonly Operator[], part: () => Expr): Expr {
    let left = part();
    while (this.#stream.isOp(...operators)) {
      const op = this.#stream.next().text as Operator;
      left = { kind: "binary", op, left, right: part() };
    }
    return left;
  }

  #unary(withFilter = true): Expr {
    if (++this.#depth > DEPTH_MAX) this.#stream.fail("an expression is nested too deeply");
    let value: Expr;
    if (this.#stream.isOp("-", "+")) {
      const op = this.#stream.next().text as "-" | "+";
      value = { kind: "unary", op, of: this.#unary(false) };
    } else value = this.postfix(this.primary());
    this.#depth--;
    return withFilter ? this.#filtered(value) : value;
  }

  primary(): Expr {
    const token = this.#stream.current;
    if (this.#stream.isOver) this.#stream.fail("expected an expression");
    if (token.kind === "name") {
      this.#stream.next();
      const constant = CONSTANTS.get(token.text);
      if (constant !== undefined) return { kind: "const", value: constant };
      return { kind: "name", name: token.text };
    }
    if (token.kind === "string") {
      let text = "";
      while (this.#stream.is("string")) text += this.#stream.next().text;
      return { kind: "const", value: text };
    }
    if (token.kind === "int" || token.kind === "float") {
      this.#stream.next();
      const digits = token.text.replaceAll("_", "");
      return { kind: "const", value: token.kind === "int" ? BigInt(digits) : Number(digits) };
    }
    if (this.#stream.takes("op", "(")) {
      const value = this.tuple(true, () => false, true);
      this.#stream.expect("op", ")");
      return value;
    }
    if (this.#stream.takes("op", "[")) return this.#list();
    if (this.#stream.takes("op", "{")) return this.#dict();
    return this.#stream.fail("expected an expression");
  }

  #list(): Expr {
    const items: Expr[] = [];
    while (!this.#stream.isOp("]")) {
      items.push(this.expression());
      if (!this.#stream.isOp("]")) this.#stream.expect("op", ",");
    }
    this.#stream.next();
    return { kind: "list", items };
  }

  #dict(): Expr {
    const items: [Expr, Expr][] = [];
    while (!this.#stream.isOp("}")) {
      const key = this.expression();
      this.#stream.expect("op", ":");
      items.push([key, this.expression()]);
      if (!this.#stream.isOp("}")) this.#stream.expect("op", ",");
    }
    this.#stream.next();
    return { kind: "dict", items };
  }

  postfix(value: Expr): Expr {
    for (;;) {
      if (this.#stream.takes("op", ".")) value = this.#member(value);
      else if (this.#stream.takes("op", "[")) value = this.#subscript(value);
      else if (this.#stream.isOp("(")) value = { kind: "call", of: value, ...this.args() };
      else return value;
    }
  }

  #member(of: Expr): Expr {
    if (this.#stream.is("name")) {
      return { kind: "attribute", of, name: this.#stream.next().text };
    }
    const index = this.#stream.expect("int").text.replaceAll("_", "");
    return { kind: "item", of, key: { kind: "const", value: BigInt(index) } };
  }

  #subscript(of: Expr): Expr {
    const bound = () => (this.#stream.isOp(":", "]") ? null : this.expression());
    const start = bound();
    if (!this.#stream.takes("op", ":")) {
      if (start === null) this.#stream.fail("expected an index");
      if (this.#stream.isOp(",")) this.#stream.fail("expected one index");
      this.#stream.expect("op", "]");
      return { kind: "item", of, key: start };
    }
    const stop = bound();
    const step = this.#stream.takes("op", ":") ? bound() : null;
    this.#stream.expect("op", "]");
    return { kind: "slice", of, start, stop, step };
  }

  #filtered(value: Expr): Expr {
    for (;;) {
      if (this.#stream.isOp("|")) value = this.filter(value);
      else if (this.#stream.takes("name", "is")) value = this.#test(value);
      else if (this.#stream.isOp("(")) value = { kind: "call", of: value, ...this.args() };
      else return value;
    }
  }

  /** At a `|`, or with `isFirst` at the name of a filter block's first filter. */
  filter(value: Expr | null, isFirst = false): FilterExpr {
    let found: FilterExpr | null = null;
    while (isFirst || this.#stream.isOp("|")) {
      if (!isFirst) this.#stream.next();
      isFirst = false;
      const name = this.#dotted();
      const args = this.#stream.isOp("(") ? this.args() : NO_ARGS;
      found = { kind: "filter", of: found ?? value, name, ...args };
    }
    return found!;
  }

  #dotted(): string {
    let name = this.#stream.expect("name").text;
    while (this.#stream.takes("op", ".")) name += `.${this.#stream.expect("name").text}`;
    return name;
  }

  #test(of: Expr): Expr {
    const isNot = this.#stream.takes("name", "not");
    const name = this.#dotted();
    let args = NO_ARGS;
    if (this.#stream.isOp("(")) args = this.args();
    else if (this.#startsArgument()) {
      if (this.#stream.isName("is")) this.#stream.fail("tests cannot be chained with is");
      args = { ...NO_ARGS, args: [this.postfix(this.primary())] };
    }
    const test: Expr = { kind: "test", of, name, ...args };
    return isNot ? { kind: "unary", op: "not", of: test } : test;
  }

  #startsArgument(): boolean {
    if (this.#stream.isOver || this.#stream.isName("else", "or", "and")) return false;
    const { kind } = this.#stream.current;
    const isLiteral = ["name", "string", "int", "float"].includes(kind);
    return isLiteral || this.#stream.isOp("(", "[", "{");
  }

  args(): Args {
    this.#stream.expect("op", "(");
    const args: Expr[] = [];
    const kwargs: { key: string; value: Expr }[] = [];
    let [star, doubleStar]: [Expr | null, Expr | null] = [null, null];
    while (!this.#stream.isOp(")")) {
      if (this.#stream.takes("op", "*")) star = this.expression();
      else if (this.#stream.takes("op", "**")) doubleStar = this.expression();
      else if (this.#stream.is("name") && this.#stream.following.text === "=") {
        const key = this.#stream.next().text;
        this.#stream.next();
        kwargs.push({ key, value: this.expression() });
      } else {
        if (kwargs.length > 0) this.#stream.fail("a positional argument follows a keyword");
        args.push(this.expression());
      }
      if (!this.#stream.isOp(")")) this.#stream.expect("op", ",");
    }
    this.#stream.next();
    return { args, kwargs, star, doubleStar };
  }
}
