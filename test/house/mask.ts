/**
 * Source text with comments and the insides of strings blanked, character for character: positions
 * and lines stay, and what is left is code. Good enough for house rules; it is not a parser.
 */

const REGEX_MAY_FOLLOW =
  /(?:^|[(,=:[!&|?{};+\-*%<>~^]|\b(?:return|typeof|case|in|of|do|else|void))$/;

/** Whether a slash after this output starts a regular expression rather than divides. */
function regexMayFollow(out: readonly string[]): boolean {
  return REGEX_MAY_FOLLOW.test(out.slice(-80).join("").trimEnd());
}

interface Masker {
  readonly code: string;
  readonly out: string[];
  at: number;
}

function keep(masker: Masker, length = 1): void {
  for (let i = 0; i < length; i++) masker.out.push(masker.code[masker.at++] ?? "");
}

function blank(masker: Masker, length = 1): void {
  for (let i = 0; i < length && masker.at < masker.code.length; i++) {
    masker.out.push(masker.code[masker.at++] === "\n" ? "\n" : " ");
  }
}

function blankTo(masker: Masker, end: string, from = masker.at): void {
  const found = masker.code.indexOf(end, from);
  blank(masker, (found < 0 ? masker.code.length : found) - masker.at);
}

/** A string in single or double quotes; keeps the quotes. */
function maskQuoted(masker: Masker): void {
  const quote = masker.code[masker.at];
  keep(masker);
  while (masker.at < masker.code.length) {
    const char = masker.code[masker.at];
    if (char === quote || char === "\n") break;
    blank(masker, char === "\\" ? 2 : 1);
  }
  keep(masker);
}

function maskRegex(masker: Masker): void {
  keep(masker);
  for (let inClass = false; masker.at < masker.code.length; ) {
    const char = masker.code[masker.at];
    if ((char === "/" && !inClass) || char === "\n") break;
    if (char === "[") inClass = true;
    if (char === "]") inClass = false;
    blank(masker, char === "\\" ? 2 : 1);
  }
  keep(masker);
}

/** The text of a template up to its end or to the next `${`, which is kept. */
function maskTemplate(masker: Masker): "closed" | "hole" {
  while (masker.at < masker.code.length) {
    const char = masker.code[masker.at];
    if (char === "`") {
      keep(masker);
      return "closed";
    }
    if (char === "$" && masker.code[masker.at + 1] === "{") {
      keep(masker, 2);
      return "hole";
    }
    blank(masker, char === "\\" ? 2 : 1);
  }
  return "closed";
}

export function maskTypeScript(code: string): string {
  const masker: Masker = { code, out: [], at: 0 };
  /** Brace depths at which an enclosing template goes on. */
  const holes: number[] = [];
  let depth = 0;
  const template = () => {
    if (maskTemplate(masker) === "hole") holes.push(depth++);
  };
  while (masker.at < code.length) {
    const char = code[masker.at];
    const pair = code.slice(masker.at, masker.at + 2);
    if (pair === "//") blankTo(masker, "\n");
    else if (pair === "/*") {
      blankTo(masker, "*/", masker.at + 2);
      blank(masker, 2);
    } else if (char === '"' || char === "'") maskQuoted(masker);
    else if (char === "`") {
      keep(masker);
      template();
    } else if (char === "/" && regexMayFollow(masker.out)) {
      maskRegex(masker);
    } else if (char === "}" && holes.at(-1) === depth - 1) {
      depth = holes.pop() ?? 0;
      keep(masker);
      template();
    } else {
      if (char === "{") depth++;
      if (char === "}") depth--;
      keep(masker);
    }
  }
  return masker.out.join("");
}

export function maskZig(code: string): string {
  const masker: Masker = { code, out: [], at: 0 };
  while (masker.at < code.length) {
    const char = code[masker.at];
    const pair = code.slice(masker.at, masker.at + 2);
    if (pair === "//" || pair === "\\\\") blankTo(masker, "\n");
    else if (char === '"' || char === "'") maskQuoted(masker);
    else keep(masker);
  }
  return masker.out.join("");
}
