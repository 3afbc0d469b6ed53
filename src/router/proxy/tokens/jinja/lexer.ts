import { SPACE, strip } from "../python/index.ts";

/**
 * Thrown if Jinja rejects a template at compile time, or if the template uses a part of the
 * language that this implementation does not support.
 */
export class TemplateSyntaxError extends Error {}

export type TokenKind = "data" | "begin" | "end" | "name" | "string" | "int" | "float" | "op";

export interface Token {
  readonly kind: TokenKind;
  /** Text of the token. For `begin` and `end`, `{{` or `{%`: the kind of tag. */
  readonly text: string;
  readonly line: number;
}

const NEWLINE = /\r\n|\r|\n/g;
const TAG = /\{%([-+]?)|\{\{([-+]?)|\{#([-+]?)/g;
const RAW = new RegExp(`\\{%([-+]?)[${SPACE}]*raw[${SPACE}]*(?:-%\\}[${SPACE}]*|%\\})`, "y");
const END_RAW = new RegExp(
  `\\{%([-+]?)[${SPACE}]*endraw[${SPACE}]*(?:\\+%\\}|-%\\}[${SPACE}]*|%\\}\\n?)`,
  "g",
);
const END_COMMENT = new RegExp(`\\+#\\}|-#\\}[${SPACE}]*|#\\}\\n?`, "g");
const END_BLOCK = new RegExp(`\\+%\\}|-%\\}[${SPACE}]*|%\\}\\n?`, "y");
const END_VARIABLE = new RegExp(`-\\}\\}[${SPACE}]*|\\}\\}`, "y");
const BLANK = new RegExp(`[${SPACE}]+`, "y");
const DIGITS = "(?:[0-9]+_)*[0-9]+";
const FLOAT = new RegExp(`${DIGITS}(?:(?:\\.${DIGITS})?e[+-]?${DIGITS}|\\.${DIGITS})`, "iy");
const INTEGER = /0b(?:_?[01])+|0o(?:_?[0-7])+|0x(?:_?[0-9a-f])+|[1-9](?:_?[0-9])*|0(?:_?0)*/iy;
const NAME = /[\p{L}\p{Nl}_][\p{L}\p{Nl}\p{Mn}\p{Mc}\p{Nd}\p{Pc}]*/uy;
const STRING = /'[^'\\]*(?:\\[\s\S][^'\\]*)*'|"[^"\\]*(?:\\[\s\S][^"\\]*)*"/y;
const OPERATOR = /\/\/|\*\*|[=!<>]=|[-+*/%~[\](){}=<>.:|,;]/y;

const BLANK_ONLY = new RegExp(`^[${SPACE}]+$`);
const CLOSING: Readonly<Record<string, string>> = { "(": ")", "[": "]", "{": "}" };

/**
 * Splits a template into tokens. Applies `trim_blocks` and `lstrip_blocks`, with which transformers
 * compiles templates.
 */
export function lex(source: string): Token[] {
  const text = source.replace(NEWLINE, "\n").replace(/\n$/, "");
  return new Lexer(text).run();
}

class Lexer {
  readonly #text: string;
  readonly #tokens: Token[] = [];
  #at = 0;
  #line = 1;
  /** True if the text read so far ends with a line end. */
  #isLineStart = true;

  constructor(text: string) {
    this.#text = text;
  }

  run(): Token[] {
    while (this.#at < this.#text.length) this.#root();
    return this.#tokens;
  }

  #fail(what: string): never {
    throw new TemplateSyntaxError(`line ${this.#line}: ${what}`);
  }

  #push(kind: TokenKind, text: string): void {
    this.#tokens.push({ kind, text, line: this.#line });
  }

  #advance(to: number): void {
    for (let i = this.#at; i < to; i++) if (this.#text.charCodeAt(i) === 10) this.#line++;
    if (to > this.#at) this.#isLineStart = this.#text.charCodeAt(to - 1) === 10;
    this.#at = to;
  }

  #match(pattern: RegExp): string | null {
    pattern.lastIndex = this.#at;
    return pattern.exec(this.#text)?.[0] ?? null;
  }

  #root(): void {
    TAG.lastIndex = this.#at;
    const found = TAG.exec(this.#text);
    if (found === null) {
      this.#push("data", this.#text.slice(this.#at));
      this.#advance(this.#text.length);
      return;
    }
    const opening = found[0].slice(0, 2);
    const sign = found[0].slice(2);
    this.#data(found.index, sign, opening !== "{{");
    const raw = opening === "{%" ? this.#rawAt(found.index) : null;
    if (raw !== null) {
      this.#raw(raw);
      return;
    }
    this.#advance(found.index + found[0].length);
    if (opening === "{#") this.#comment();
    else {
      this.#push("begin", opening);
      this.#inside(opening === "{{" ? END_VARIABLE : END_BLOCK, opening);
    }
  }

  /**
   * Reads text up to a tag. Removes blanks before the tag, depending on the tag's sign (`-` or `+`)
   * and on its position in the line.
   */
  #data(end: number, sign: string, isBlock: boolean): void {
    let data = this.#text.slice(this.#at, end);
    if (sign === "-") data = strip(data, null, "right");
    else if (sign !== "+" && isBlock) {
      const line = data.lastIndexOf("\n") + 1;
      if ((line > 0 || this.#isLineStart) && BLANK_ONLY.test(data.slice(line))) {
        data = data.slice(0, line);
      }
    }
    if (data !== "") this.#push("data", data);
    this.#advance(end);
  }

  #rawAt(at: number): string | null {
    RAW.lastIndex = at;
    return RAW.exec(this.#text)?.[0] ?? null;
  }

  #raw(opening: string): void {
    this.#advance(this.#at + opening.length);
    END_RAW.lastIndex = this.#at;
    const end = END_RAW.exec(this.#text);
    if (end === null) this.#fail("Missing end of raw directive");
    this.#data(end.index, end[1], true);
    this.#advance(end.index + end[0].length);
  }

  #comment(): void {
    END_COMMENT.lastIndex = this.#at;
    const end = END_COMMENT.exec(this.#text);
    if (end === null) this.#fail("Missing end of comment tag");
    this.#advance(end.index + end[0].length);
  }

  #inside(ending: RegExp, opening: string): void {
    const open: string[] = [];
    for (;;) {
      if (this.#at >= this.#text.length) this.#fail(`the end of "${opening}" is missing`);
      const end = open.length === 0 ? this.#match(ending) : null;
      if (end !== null) {
        this.#push("end", opening);
        this.#advance(this.#at + end.length);
        return;
      }
      const blank = this.#match(BLANK);
      if (blank !== null) this.#advance(this.#at + blank.length);
      else this.#word(open);
    }
  }

  #word(open: string[]): void {
    const kinds = [
      ["float", FLOAT],
      ["int", INTEGER],
      ["name", NAME],
      ["string", STRING],
      ["op", OPERATOR],
    ] as const;
    for (const [kind, pattern] of kinds) {
      const text = this.#match(pattern);
      // A float cannot follow a point: in `a.0.1`, `0` and `1` are two indexes.
      if (text === null || (kind === "float" && this.#text[this.#at - 1] === ".")) continue;
      if (kind === "op") this.#balance(text, open);
      this.#push(kind, kind === "string" ? unescaped(text.slice(1, -1)) : text);
      this.#advance(this.#at + text.length);
      return;
    }
    this.#fail(`unexpected character ${JSON.stringify(this.#text[this.#at])}`);
  }

  #balance(operator: string, open: string[]): void {
    const closing = CLOSING[operator];
    if (closing !== undefined) open.push(closing);
    else if (")]}".includes(operator) && open.pop() !== operator) {
      this.#fail(`unexpected '${operator}'`);
    }
  }
}

const PLAIN: Readonly<Record<string, string>> = {
  "\n": "",
  "\\": "\\",
  "'": "'",
  '"': '"',
  a: "\x07",
  b: "\b",
  f: "\f",
  n: "\n",
  r: "\r",
  t: "\t",
  v: "\v",
};
const ESCAPE = /\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|([\s\S]))/g;

/** Returns the value of a Python string literal. Leaves unknown escapes unchanged. */
function unescaped(text: string): string {
  return text.replace(ESCAPE, (all, two, four, eight, octal, char) => {
    const hex: string | undefined = two ?? four ?? eight;
    if (hex !== undefined) return fromCode(Number.parseInt(hex, 16));
    if (octal !== undefined) return fromCode(Number.parseInt(octal, 8));
    if ("xuUN".includes(char)) throw new TemplateSyntaxError(`invalid escape: ${all}`);
    return PLAIN[char] ?? all;
  });
}

function fromCode(code: number): string {
  if (code > 0x10ffff) throw new TemplateSyntaxError("escape beyond the last Unicode character");
  return String.fromCodePoint(code);
}

const END: Token = { kind: "end", text: "the end of the template", line: 0 };

/** Reads tokens one after the other. Used by the parsers. */
export class TokenStream {
  readonly #tokens: readonly Token[];
  #at = 0;

  constructor(tokens: readonly Token[]) {
    this.#tokens = tokens;
  }

  get isOver(): boolean {
    return this.#at >= this.#tokens.length;
  }

  get current(): Token {
    return this.#tokens[this.#at] ?? END;
  }

  get following(): Token {
    return this.#tokens[this.#at + 1] ?? END;
  }

  next(): Token {
    const token = this.current;
    this.#at++;
    return token;
  }

  is(kind: TokenKind, text?: string): boolean {
    const token = this.current;
    return token.kind === kind && (text === undefined || token.text === text) && !this.isOver;
  }

  isOp(...texts: readonly string[]): boolean {
    return this.is("op") && texts.includes(this.current.text);
  }

  isName(...texts: readonly string[]): boolean {
    return this.is("name") && texts.includes(this.current.text);
  }

  /**
   * Consumes the current token and returns true if it has this kind and text. Otherwise returns
   * false.
   */
  takes(kind: TokenKind, text: string): boolean {
    if (!this.is(kind, text)) return false;
    this.#at++;
    return true;
  }

  expect(kind: TokenKind, text?: string): Token {
    if (!this.is(kind, text)) this.fail(`expected ${text ?? kind}`);
    return this.next();
  }

  fail(what: string): never {
    const { line, text, kind } = this.current;
    const got = kind === "data" ? "template text" : JSON.stringify(text);
    const at = line === 0 ? this.#tokens.at(-1)?.line : line;
    throw new TemplateSyntaxError(`line ${at ?? 1}: ${what}, got ${got}`);
  }
}
