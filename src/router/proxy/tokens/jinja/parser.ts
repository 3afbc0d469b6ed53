import type { Value } from "../python/index.ts";
import { lex, TemplateSyntaxError, TokenStream } from "./lexer.ts";

export interface Args {
  readonly args: readonly Expr[];
  readonly kwargs: readonly { readonly key: string; readonly value: Expr }[];
  readonly star: Expr | null;
  readonly doubleStar: Expr | null;
}

export type Operator = "+" | "-" | "*" | "/" | "//" | "%" | "**";
export type Comparison = "==" | "!=" | "<" | "<=" | ">" | ">=" | "in" | "not in";

interface SliceExpr {
  readonly kind: "slice";
  readonly of: Expr;
  readonly start: Expr | null;
  readonly stop: Expr | null;
  readonly step: Expr | null;
}

interface CompareExpr {
  readonly kind: "compare";
  readonly first: Expr;
  readonly rest: readonly { readonly op: Comparison; readonly value: Expr }[];
}

interface ConditionExpr {
  readonly kind: "condition";
  readonly test: Expr;
  readonly then: Expr;
  readonly otherwise: Expr | null;
}

export type CallExpr = { readonly kind: "call"; readonly of: Expr } & Args;

/** A filter and its input. `of` is null if the input is the text of a filter block. */
export type FilterExpr = {
  readonly kind: "filter";
  readonly of: Expr | null;
  readonly name: string;
} & Args;

export type Expr =
  | { readonly kind: "const"; readonly value: Value }
  | { readonly kind: "name"; readonly name: string }
  | { readonly kind: "list" | "tuple"; readonly items: readonly Expr[] }
  | { readonly kind: "dict"; readonly items: readonly (readonly [Expr, Expr])[] }
  | { readonly kind: "attribute"; readonly of: Expr; readonly name: string }
  | { readonly kind: "item"; readonly of: Expr; readonly key: Expr }
  | SliceExpr
  | CallExpr
  | FilterExpr
  | ({ readonly kind: "test"; readonly of: Expr; readonly name: string } & Args)
  | { readonly kind: "unary"; readonly op: "not" | "-" | "+"; readonly of: Expr }
  | { readonly kind: "binary"; readonly op: Operator; readonly left: Expr; readonly right: Expr }
  | { readonly kind: "concat"; readonly parts: readonly Expr[] }
  | { readonly kind: "and" | "or"; readonly left: Expr; readonly right: Expr }
  | CompareExpr
  | ConditionExpr;

/** Left-hand side of an assignment. */
export type Target =
  | { readonly kind: "name"; readonly name: string }
  | { readonly kind: "slot"; readonly name: string; readonly slot: string }
  | { readonly kind: "tuple"; readonly items: readonly Target[] };

export interface Parameter {
  readonly name: string;
  readonly value: Expr | null;
}

export type Body = readonly Node[];

/** A statement that contains other statements. */
interface Block<Kind extends string> {
  readonly kind: Kind;
  readonly body: Body;
}

export interface ForNode extends Block<"for"> {
  readonly target: Target;
  readonly iter: Expr;
  readonly test: Expr | null;
  readonly otherwise: Body;
  readonly isRecursive: boolean;
}

export interface MacroNode extends Block<"macro"> {
  readonly name: string;
  readonly parameters: readonly Parameter[];
}

interface IfNode {
  readonly kind: "if";
  readonly branches: readonly { readonly test: Expr; readonly body: Body }[];
  readonly otherwise: Body;
}

export type Node =
  | { readonly kind: "text"; readonly text: string }
  | { readonly kind: "output"; readonly value: Expr }
  | IfNode
  | ForNode
  | { readonly kind: "set"; readonly target: Target; readonly value: Expr }
  | (Block<"setBlock"> & { readonly target: Target; readonly filter: FilterExpr | null })
  | MacroNode
  | (Block<"callBlock"> & { readonly call: CallExpr; readonly parameters: readonly Parameter[] })
  | (Block<"filterBlock"> & { readonly filter: FilterExpr })
  | (Block<"with"> & {
      readonly items: readonly { readonly target: Target; readonly value: Expr }[];
    })
  /**
   * `{% generation %}` only opens a scope here. It marks generated tokens, which no caller needs.
   */
  | Block<"generation">
  | { readonly kind: "break" | "continue" };

/** Maximum nesting depth of blocks. A greater depth would overflow the interpreter's stack. */
const BLOCK_DEPTH_MAX = 100;
const LOADER_TAGS: ReadonlySet<string> = new Set([
  ...["extends", "block", "include", "import", "from", "autoescape"],
]);

/** Parses a template. Throws TemplateSyntaxError with the line number if it is invalid. */
export function parseTemplate(source: string): Body {
  return new Parser(new TokenStream(lex(source))).whole();
}

class Parser {
  readonly #stream: TokenStream;
  readonly #expressions: ExpressionParser;
  #depth = 0;
  #loops = 0;

  constructor(stream: TokenStream) {
    this.#stream = stream;
    this.#expressions = new ExpressionParser(stream);
  }

  whole(): Body {
    const body = this.#body([]);
    if (!this.#stream.isOver) this.#stream.fail("unexpected tag");
    return body;
  }

  /** Parses statements up to a tag with one of the names in `ends`. Does not consume that name. */
  #body(ends: readonly string[]): Body {
    if (++this.#depth > BLOCK_DEPTH_MAX) this.#stream.fail("blocks are nested too deeply");
    const nodes: Node[] = [];
    while (!this.#stream.isOver) {
      const token = this.#stream.next();
      if (token.kind === "data") nodes.push({ kind: "text", text: token.text });
      else if (token.text === "{{") {
        nodes.push({ kind: "output", value: this.#expressions.tuple() });
        this.#stream.expect("end", "{{");
      } else if (ends.length > 0 && this.#stream.isName(...ends)) {
        this.#depth--;
        return nodes;
      } else nodes.push(...this.#statement());
    }
    if (ends.length > 0) this.#stream.fail(`expected one of ${ends.join(", ")}`);
    this.#depth--;
    return nodes;
  }

  #end(): void {
    this.#stream.expect("end", "{%");
  }

  /** Consumes the end of a tag that is followed by a body: an optional `:`, then `%}`. */
  #open(): void {
    this.#stream.takes("op", ":");
    this.#end();
  }

  /** Parses the rest of an opening tag, the body, and the closing tag named `end`. */
  #block(end: string): Body {
    this.#open();
    const body = this.#body([end]);
    this.#stream.next();
    this.#end();
    return body;
  }

  #statement(): readonly Node[] {
    const name = this.#stream.expect("name").text;
    switch (name) {
      case "if":
        return [this.#if()];
      case "for":
        return [this.#for()];
      case "set":
        return [this.#set()];
      case "macro":
        return [this.#macro()];
      case "call":
        return [this.#callBlock()];
      case "filter":
        return [this.#filterBlock()];
      case "with":
        return [this.#with()];
      case "generation":
        return [{ kind: "generation", body: this.#block("endgeneration") }];
      case "print":
        return this.#print();
      case "break":
      case "continue":
        if (this.#loops === 0) this.#stream.fail(`${name} outside a loop`);
        this.#end();
        return [{ kind: name }];
      default:
        if (LOADER_TAGS.has(name)) this.#stream.fail(`the tag ${name} is not supported`);
        throw new TemplateSyntaxError(`line ${this.#stream.current.line}: unknown tag '${name}'`);
    }
  }

  #print(): readonly Node[] {
    const nodes: Node[] = [];
    while (!this.#stream.is("end")) {
      if (nodes.length > 0) this.#stream.expect("op", ",");
      nodes.push({ kind: "output", value: this.#expressions.expression() });
    }
    this.#end();
    return nodes;
  }

  #if(): Node {
    const branches: { test: Expr; body: Body }[] = [];
    for (;;) {
      const test = this.#expressions.tuple(false);
      this.#open();
      branches.push({ test, body: this.#body(["elif", "else", "endif"]) });
      const next = this.#stream.next().text;
      if (next === "elif") continue;
      return { kind: "if", branches, otherwise: this.#else(next, "endif") };
    }
  }

  /**
   * Parses an `else` branch if `tag` is `else`, then the closing tag. Returns the branch's body;
   * empty if there is none.
   */
  #else(tag: string, end: string): Body {
    const body = tag === "else" ? this.#block(end) : [];
    if (tag !== "else") this.#end();
    return body;
  }

  #for(): Node {
    const target = this.#target(() => this.#stream.isName("in"));
    this.#stream.expect("name", "in");
    const iter = this.#expressions.tuple(false, () => this.#stream.isName("recursive"));
    const test = this.#stream.takes("name", "if") ? this.#expressions.expression() : null;
    const isRecursive = this.#stream.takes("name", "recursive");
    this.#open();
    this.#loops++;
    const body = this.#body(["endfor", "else"]);
    this.#loops--;
    const otherwise = this.#else(this.#stream.next().text, "endfor");
    return { kind: "for", target, iter, test, body, otherwise, isRecursive };
  }

  #set(): Node {
    const target = this.#target(() => this.#stream.isOp("="), true);
    if (this.#stream.takes("op", "=")) {
      const value = this.#expressions.tuple();
      this.#end();
      return { kind: "set", target, value };
    }
    const filter = this.#stream.isOp("|") ? this.#expressions.filter(null) : null;
    return { kind: "setBlock", target, filter, body: this.#block("endset") };
  }

  /**
   * Parses the left-hand side of an assignment: a name, an attribute of a namespace, or several
   * names.
   */
  #target(isEnd: () => boolean, mayHaveSlot = false): Target {
    const items: Target[] = [];
    let isTuple = false;
    while (!isEnd() && !this.#stream.is("end") && !this.#stream.isOp(")", "|")) {
      if (this.#stream.takes("op", "(")) {
        items.push(this.#target(() => false, mayHaveSlot));
        this.#stream.expect("op", ")");
      } else items.push(this.#oneTarget(mayHaveSlot));
      if (!this.#stream.takes("op", ",")) break;
      isTuple = true;
    }
    if (items.length === 0) this.#stream.fail("expected a name to assign to");
    return isTuple ? { kind: "tuple", items } : items[0];
  }

  #oneTarget(mayHaveSlot: boolean): Target {
    const name = this.#name();
    if (!mayHaveSlot || !this.#stream.takes("op", ".")) return { kind: "name", name };
    return { kind: "slot", name, slot: this.#stream.expect("name").text };
  }

  #name(): string {
    if (CONSTANTS.has(this.#stream.current.text)) this.#stream.fail("cannot assign to a constant");
    return this.#stream.expect("name").text;
  }

  #parameters(): Parameter[] {
    const parameters: Parameter[] = [];
    this.#stream.expect("op", "(");
    while (!this.#stream.isOp(")")) {
      if (parameters.length > 0) {
        this.#stream.expect("op", ",");
        if (this.#stream.isOp(")")) break;
      }
      const name = this.#name();
      const value = this.#stream.takes("op", "=") ? this.#expressions.expression() : null;
      if (value === null && parameters.at(-1)?.value != null) {
        this.#stream.fail("a parameter without a default follows one with a default");
      }
      parameters.push({ name, value });
    }
    this.#stream.next();
    return parameters;
  }

  /**
   * Parses a macro's body. `break` and `continue` in it cannot refer to loops outside of the macro.
   */
  #apart(end: string): Body {
    const loops = this.#loops;
    this.#loops = 0;
    const body = this.#block(end);
    this.#loops = loops;
    return body;
  }

  #macro(): Node {
    const name = this.#name();
    const parameters = this.#parameters();
    return { kind: "macro", name, parameters, body: this.#apart("endmacro") };
  }

  #callBlock(): Node {
    const parameters = this.#stream.isOp("(") ? this.#parameters() : [];
    const call = this.#expressions.expression();
    if (call.kind !== "call") return this.#stream.fail("expected a call");
    return { kind: "callBlock", call, parameters, body: this.#apart("endcall") };
  }

  #filterBlock(): Node {
    const filter = this.#expressions.filter(null, true);
    return { kind: "filterBlock", filter, body: this.#block("endfilter") };
  }

  #with(): Node {
    const items: { target: Target; value: Expr }[] = [];
    while (!this.#stream.is("end")) {
      if (items.length > 0) this.#stream.expect("op", ",");
      const target: Target = { kind: "name", name: this.#name() };
      this.#stream.expect("op", "=");
      items.push({ target, value: this.#expressions.expression() });
    }
    return { kind: "with", items, body: this.#block("endwith") };
  }
}

/**
 * Maximum nesting depth of expressions. A greater depth would overflow the stack of functions that
 * walk them.
 */
const EXPRESSION_DEPTH_MAX = 200;

const COMPARISONS: ReadonlySet<string> = new Set(["==", "!=", "<", "<=", ">", ">="]);
const CONSTANTS: ReadonlyMap<string, Value> = new Map<string, Value>([
  ["true", true],
  ["True", true],
  ["false", false],
  ["False", false],
  ["none", null],
  ["None", null],
]);
const NO_ARGS: Args = { args: [], kwargs: [], star: null, doubleStar: null };

/** Parses expressions with Jinja's operator precedence. */
class ExpressionParser {
  readonly #stream: TokenStream;
  #depth = 0;

  constructor(stream: TokenStream) {
    this.#stream = stream;
  }

  /** Parses a condition `a if b else c`, or an expression of higher precedence. */
  expression(): Expr {
    if (++this.#depth > EXPRESSION_DEPTH_MAX)
      this.#stream.fail("an expression is nested too deeply");
    let then = this.#or();
    while (this.#stream.takes("name", "if")) {
      const test = this.#or();
      const otherwise = this.#stream.takes("name", "else") ? this.expression() : null;
      then = { kind: "condition", test, then, otherwise };
    }
    this.#depth--;
    return then;
  }

  /** Parses one expression, or a tuple of expressions separated by commas. */
  tuple(isConditional = true, isEnd: () => boolean = () => false, mayBeEmpty = false): Expr {
    const items: Expr[] = [];
    let isTuple = false;
    while (!this.#endsTuple(isEnd)) {
      items.push(isConditional ? this.expression() : this.#or());
      if (!this.#stream.takes("op", ",")) break;
      isTuple = true;
    }
    if (!isTuple && items.length === 1) return items[0];
    if (!isTuple && !mayBeEmpty) this.#stream.fail("expected an expression");
    return { kind: "tuple", items };
  }

  #endsTuple(isEnd: () => boolean): boolean {
    return this.#stream.is("end") || this.#stream.isOp(")") || isEnd();
  }

  #or(): Expr {
    return this.#logical("or", () => this.#logical("and", () => this.#not()));
  }

  #logical(kind: "or" | "and", part: () => Expr): Expr {
    let left = part();
    while (this.#stream.takes("name", kind)) left = { kind, left, right: part() };
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
    return rest.length === 0 ? first : { kind: "compare", first, rest };
  }

  #sum(): Expr {
    return this.#binary(["+", "-"], () => this.#concat());
  }

  #concat(): Expr {
    const parts = [this.#product()];
    while (this.#stream.takes("op", "~")) parts.push(this.#product());
    return parts.length === 1 ? parts[0] : { kind: "concat", parts };
  }

  #product(): Expr {
    const power = () => this.#binary(["**"], () => this.#unary());
    return this.#binary(["*", "/", "//", "%"], power);
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
    if (++this.#depth > EXPRESSION_DEPTH_MAX)
      this.#stream.fail("an expression is nested too deeply");
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
    if (this.#stream.takes("op", "[")) {
      return { kind: "list", items: this.#items("]", () => this.expression()) };
    }
    if (this.#stream.takes("op", "{")) {
      return { kind: "dict", items: this.#items("}", () => this.#pair()) };
    }
    return this.#stream.fail("expected an expression");
  }

  /**
   * Reads items separated by commas up to the closing operator `end`, and consumes that operator.
   */
  #items<Item>(end: string, read: () => Item): Item[] {
    const items: Item[] = [];
    while (!this.#stream.isOp(end)) {
      items.push(read());
      if (!this.#stream.isOp(end)) this.#stream.expect("op", ",");
    }
    this.#stream.next();
    return items;
  }

  #pair(): readonly [Expr, Expr] {
    const key = this.expression();
    this.#stream.expect("op", ":");
    return [key, this.expression()];
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

  /**
   * Parses a filter that begins at `|`. With `isFirst`, parses the first filter of a filter block,
   * which begins at its name.
   */
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
    this.#items(")", () => {
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
    });
    return { args, kwargs, star, doubleStar };
  }
}
