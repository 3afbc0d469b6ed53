import { maskTypeScript, maskZig } from "./mask.ts";

/** A function as far as braces tell: where it starts and how many lines it takes. */
export interface FoundFunction {
  readonly line: number;
  /** Without the lines of named functions and tests inside it, which count for themselves. */
  readonly lines: number;
}

interface Span {
  readonly start: number;
  readonly end: number;
  /** The body of a `describe` or of a contract suite: a list, not a function. */
  readonly isSuite: boolean;
  readonly isTest: boolean;
  /** Declared with a name: a function or a method, not a callback. */
  readonly isNamed: boolean;
}

const OPENERS: Record<string, string> = { ")": "(", "]": "[" };
const NO_FUNCTION = /^(?:else\b|if\b|for\b|while\b|switch\b|catch\b|do\b|try\b|finally\b|class\b)/;
const PARAMETERS_THEN_TYPE = /\)\s*(?::\s*[^\s{}][^{}]*)?$/;

/** Start of the statement or argument to which the brace at `brace` belongs. */
function headStart(code: string, brace: number): number {
  const open: string[] = [];
  for (let at = brace - 1; at >= 0; at--) {
    const char = code[at]!;
    if (char === ")" || char === "]") open.push(OPENERS[char]!);
    else if (char === "(" || char === "[") {
      if (open.length === 0) return at + 1;
      open.pop();
    } else if (open.length === 0 && (char === ";" || char === "{" || char === "}")) return at + 1;
  }
  return 0;
}

function closingBrace(code: string, brace: number): number {
  let depth = 0;
  for (let at = brace; at < code.length; at++) {
    if (code[at] === "{") depth++;
    if (code[at] === "}" && --depth === 0) return at;
  }
  return code.length - 1;
}

function spanAt(code: string, brace: number): Span | undefined {
  const from = headStart(code, brace);
  const head = code.slice(from, brace).trim();
  const isArrow = head.endsWith("=>");
  if (!isArrow && (NO_FUNCTION.test(head) || !PARAMETERS_THEN_TYPE.test(head))) return undefined;
  const caller = /([\w.]+)(?:\([^()]*\))?\($/.exec(code.slice(Math.max(0, from - 80), from))?.[1];
  const isSuite = isArrow && /^describe/.test(caller ?? "");
  const isTest = isArrow && /^(?:test|it)\b/.test(caller ?? "");
  return { start: from, end: closingBrace(code, brace), isSuite, isTest, isNamed: !isArrow };
}

function lineOf(code: string, at: number): number {
  return code.slice(0, at).split("\n").length;
}

function firstLine(code: string, span: Span): number {
  const text = code.slice(span.start);
  return lineOf(code, span.start + (text.length - text.trimStart().length));
}

function measure(code: string, span: Span, all: readonly Span[]): FoundFunction {
  const line = firstLine(code, span);
  let lines = lineOf(code, span.end) - line + 1;
  let past = -1;
  for (const inner of all) {
    const isInside = inner.start > span.start && inner.end < span.end;
    const isCounted = inner.isSuite || inner.isTest || inner.isNamed;
    if (!isInside || inner.start < past || !isCounted) continue;
    lines -= lineOf(code, inner.end) - firstLine(code, inner) + 1;
    past = inner.end;
  }
  return { line, lines };
}

export function typeScriptFunctions(source: string): FoundFunction[] {
  const code = maskTypeScript(source);
  const spans: Span[] = [];
  for (let at = code.indexOf("{"); at >= 0; at = code.indexOf("{", at + 1)) {
    const span = spanAt(code, at);
    if (span !== undefined) spans.push(span);
  }
  return spans.filter((span) => !span.isSuite).map((span) => measure(code, span, spans));
}

/**
 * Where the body of the Zig function whose parameters open at `paren` begins; -1 without a body.
 */
function zigBody(code: string, paren: number): number {
  let depth = 0;
  let at = paren;
  for (; at < code.length; at++) {
    if (code[at] === "(") depth++;
    if (code[at] === ")" && --depth === 0) break;
  }
  for (let from = at + 1; ; ) {
    const brace = code.indexOf("{", from);
    const end = code.indexOf(";", from);
    if (brace < 0 || (end >= 0 && end < brace)) return -1;
    const head = code.slice(at + 1, brace).trim();
    // A function that returns a type is a folder of functions; they count for themselves.
    if (head === "type") return -1;
    if (!head.endsWith("error")) return brace;
    from = closingBrace(code, brace) + 1;
  }
}

export function zigFunctions(source: string): FoundFunction[] {
  const code = maskZig(source);
  const found: FoundFunction[] = [];
  for (const match of code.matchAll(/\bfn\s+\w+\s*\(|\btest\b[^;{}]*\{/g)) {
    const last = match.index + match[0].length - 1;
    const body = match[0].startsWith("fn") ? zigBody(code, last) : last;
    if (body < 0) continue;
    const line = lineOf(code, match.index);
    found.push({ line, lines: lineOf(code, closingBrace(code, body)) - line + 1 });
  }
  return found;
}

export function pythonFunctions(source: string): FoundFunction[] {
  const lines = source.split("\n");
  const indentOf = (text: string) => text.length - text.trimStart().length;
  const found: FoundFunction[] = [];
  for (const [index, text] of lines.entries()) {
    if (!/^\s*(?:async )?def /.test(text)) continue;
    let last = index;
    for (let at = index + 1; at < lines.length; at++) {
      const next = lines[at]!;
      if (next.trim() === "" || /^\s*\)/.test(next)) continue;
      if (indentOf(next) <= indentOf(text)) break;
      last = at;
    }
    found.push({ line: index + 1, lines: last - index + 1 });
  }
  return found;
}
