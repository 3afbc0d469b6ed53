import { posix } from "node:path";
import type { Tree } from "./tree.ts";

/** A marker phrase of the prose lint, found in a comment, a text or a page. */
export interface Marker {
  readonly path: string;
  readonly line: number;
  readonly phrase: string;
}

export interface Prose {
  readonly words: number;
  readonly markers: readonly Marker[];
}

/** Phrases that the style sheet rejects wherever they stand in a sentence. */
const PHRASES = new RegExp(
  `\\b(?:${[
    "whoever",
    "whom",
    "nobody",
    "somebody",
    "anybody",
    "told",
    "tells",
    "in words",
    "becomes of",
    "by itself",
    "goes on",
    "so many",
    "so long",
    "for good",
    "pictures?",
    "patience",
    "that of",
    "be they",
    "is no(?! longer)",
    "what (?:is|was|came|comes|follows|followed)",
  ].join("|")})\\b`,
  "gi",
);
/** Words that may not begin a sentence, unless it is a question. */
const BEGINNINGS = /(?:^|[.!:;|]\s+)((?:Of|Who|Whose|What)\b)(?![^.!?]*\?)/g;

const CODE = new Set([".ts", ".zig", ".py"]);
const SETTINGS = new Set([".toml", ".service", ".sh"]);
const TEXTS = /"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|`((?:[^`\\]|\\.)*)`/g;
const SLASHES = /(?<![:"'`])\/\/+!?\s?(.*)$|^\s*(?:\/\*\*?|\*)(?!\/)\s?(.*?)(?:\*\/)?$/;
const HASH = /(?:^|\s)#\s?(.*)$/;

/** Comments and texts of one line of code: what a person reads. */
function proseOfCode(line: string, comment: RegExp): string[] {
  const found = comment.exec(line);
  const code = found === null ? line : line.slice(0, found.index);
  const texts = [...code.matchAll(TEXTS)].map(([, a, b, c]) => a ?? b ?? c ?? "");
  const spoken = texts.filter((text) => /\w \w/.test(text));
  return found === null ? spoken : [...spoken, found[1] ?? found[2] ?? ""];
}

function* proseOfPage(text: string): Generator<[number, string]> {
  let isFenced = false;
  for (const [index, line] of text.split("\n").entries()) {
    if (/^\s*```/.test(line)) isFenced = !isFenced;
    else if (!isFenced) yield [index + 1, line.replaceAll(/`[^`]*`|\]\([^)]*\)/g, "x")];
  }
}

function* proseOf(path: string, text: string): Generator<[number, string]> {
  const extension = posix.extname(path);
  if (extension === ".md") yield* proseOfPage(text);
  else if (CODE.has(extension) || SETTINGS.has(extension)) {
    const comment = extension === ".ts" || extension === ".zig" ? SLASHES : HASH;
    for (const [index, line] of text.split("\n").entries()) {
      for (const piece of proseOfCode(line, comment)) yield [index + 1, piece];
    }
  }
}

/** Words and marker phrases in the files that `wanted` selects. */
export function readProse(tree: Tree, wanted: (path: string) => boolean): Prose {
  const markers: Marker[] = [];
  let words = 0;
  for (const [path, text] of tree) {
    if (!wanted(path)) continue;
    for (const [line, piece] of proseOf(path, text)) {
      words += piece.split(/\s+/).filter(Boolean).length;
      const found = [...piece.matchAll(PHRASES), ...piece.matchAll(BEGINNINGS)];
      for (const match of found) markers.push({ path, line, phrase: match[1] ?? match[0] });
    }
  }
  return { words, markers };
}
