import { TemplateSyntaxError, type Token, type TokenKind } from "./lexer.ts";

const END: Token = { kind: "end", text: "the end of the template", line: 0 };

/** Tokens one after the other, with what parsers ask of them. */
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

  /** Takes the token where it is the one that is asked for. */
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
