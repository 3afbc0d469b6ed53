import { mkdirSync, writeFileSync } from "node:fs";
import { basename, join, relative } from "node:path";
import { ROOT } from "../../scripts/lib/paths.ts";
import { shapeOf } from "./target.ts";

export const FINDINGS_FOLDER = join(ROOT, "dist/fuzz");
const FINDINGS_MAX = 10;

export type FindingKind = "crash" | "hang" | "memory";

export interface Finding {
  readonly target: string;
  readonly kind: FindingKind;
  readonly what: string;
  readonly file: string;
  /** Tries the input again. */
  readonly again: string;
}

/** What was found, each kind of failure once, with the input in a file. */
export class Findings {
  readonly list: Finding[] = [];
  readonly #seen = new Set<string>();

  get full(): boolean {
    return this.list.length >= FINDINGS_MAX;
  }

  isNew(target: string, kind: FindingKind, what: string): boolean {
    return !this.#seen.has(`${target} ${kind} ${shapeOf(what)}`);
  }

  add(target: string, kind: FindingKind, what: string, input: Uint8Array): Finding {
    this.#seen.add(`${target} ${kind} ${shapeOf(what)}`);
    const file = saveInput(target, kind, input);
    const finding = { target, kind, what, file, again: replayCommand(file) };
    this.list.push(finding);
    return finding;
  }
}

/** Writes the input where `--replay` finds it; the name says which target it is for. */
export function saveInput(target: string, kind: FindingKind, input: Uint8Array): string {
  mkdirSync(FINDINGS_FOLDER, { recursive: true });
  const hash = Bun.hash(input).toString(16).padStart(16, "0");
  const file = join(FINDINGS_FOLDER, `${target}-${kind}-${hash}.bin`);
  writeFileSync(file, input);
  return relative(ROOT, file);
}

export function targetOfFile(file: string): string {
  return basename(file).split("-")[0]!;
}

export function replayCommand(file: string): string {
  return `./dev test:fuzz --replay ${file}`;
}
