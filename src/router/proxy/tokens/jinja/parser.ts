import { ExpressionParser } from "./expression-parser.ts";
import { lex, TemplateSyntaxError } from "./lexer.ts";
import type { Body, Expr, ForNode, IfNode, Node, Parameter, Target } from "./nodes.ts";
import { TokenStream } from "./token-stream.ts";

/** Blocks in blocks; deeper ones would overflow the interpreter's stack. */
const DEPTH_MAX = 100;
const RESERVED: ReadonlySet<string> = new Set(["true", "false", "none", "True", "False", "None"]);
const LOADER_TAGS: ReadonlySet<string> = new Set([
  ...["extends", "block", "include", "import", "from", "autoescape"],
]);

/** Throws TemplateSyntaxError, with the line. */
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

  /** Up to a tag of one of the names, which is left, behind its `{%`. */
  #body(ends: readonly string[]): Body {
    if (++this.#depth > DEPTH_MAX) this.#stream.fail("blocks are nested too deeply");
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

  /** The rest of a tag, a body and its closing tag. */
  #block(end: string): Body {
    this.#stream.takes("op", ":");
    this.#end();
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
        if (this.#loops === 0) this.#stream.fail(`${name} outside of a loop`);
        this.#end();
        return [{ kind: name }];
      default:
        if (LOADER_TAGS.has(name)) this.#stream.fail(`the tag ${name} is not supported`);
        throw new TemplateSyntaxError(
          `line ${this.#stream.current.line}: there is no tag named '${name}'`,
        );
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

  #if(): IfNode {
    const branches: { test: Expr; body: Body }[] = [];
    let otherwise: Body = [];
    for (;;) {
      const test = this.#expressions.tuple(false);
      this.#stream.takes("op", ":");
      this.#end();
      branches.push({ test, body: this.#body(["elif", "else", "endif"]) });
      const next = this.#stream.next().text;
      if (next === "elif") continue;
      if (next === "else") {
        this.#stream.takes("op", ":");
        this.#end();
        otherwise = this.#body(["endif"]);
        this.#stream.next();
      }
      this.#end();
      return { kind: "if", branches, otherwise };
    }
  }

  #for(): ForNode {
    const target = this.#target(() => this.#stream.isName("in"));
    this.#stream.expect("name", "in");
    const iter = this.#expressions.tuple(false, () => this.#stream.isName("recursive"));
    const test = this.#stream.takes("name", "if") ? this.#expressions.expression() : null;
    const isRecursive = this.#stream.takes("name", "recursive");
    this.#stream.takes("op", ":");
    this.#end();
    this.#loops++;
    const body = this.#body(["endfor", "else"]);
    this.#loops--;
    let otherwise: Body = [];
    if (this.#stream.next().text === "else") {
      this.#stream.takes("op", ":");
      this.#end();
      otherwise = this.#body(["endfor"]);
      this.#stream.next();
    }
    this.#end();
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

  /** A name, a member of a namespace, or several of them. */
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
    return isTuple ? { kind: "tuple", items } : items[0]!;
  }

  #oneTarget(mayHaveSlot: boolean): Target {
    const name = this.#name();
    if (!mayHaveSlot || !this.#stream.takes("op", ".")) return { kind: "name", name };
    return { kind: "slot", name, slot: this.#stream.expect("name").text };
  }

  #name(): string {
    if (RESERVED.has(this.#stream.current.text)) this.#stream.fail("cannot assign to a constant");
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

  /** Loops around a macro do not let its body break out of them. */
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
