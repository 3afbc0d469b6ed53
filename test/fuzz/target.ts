import type { Random } from "../../src/core/index.ts";

/** Tells what became of an input. One that brings something new is kept, to be damaged further. */
export type Saw = (feature: string) => void;

/** Something that takes bytes from anybody, and what it must do with them. */
export interface Target {
  readonly name: string;
  /** Good inputs, from which bad ones are made. */
  readonly corpus: readonly Uint8Array[];
  /** Longest input to make; 64 KiB unless said. */
  readonly inputBytesMax?: number;
  /** Longest turn of the event loop that an input may cause, in CPU time; any unless said. */
  readonly stallMs?: number;
  /** Makes an input from nothing: well formed for the most part. */
  generate?(random: Random): Uint8Array;
  /** Refusals are an answer; whatever it throws is a crash. The same input does the same again. */
  run(input: Uint8Array, saw: Saw): void | Promise<void>;
  /** Checked now and then, and at the end. */
  settle?(): void;
  close?(): Promise<void>;
}

/** A property that an accepted input must have. */
export function must(condition: boolean, what: string): asserts condition {
  if (!condition) throw new Error(`property broken: ${what}`);
}

/** Words without their numbers and quotations: one shape for each kind of answer. */
export function shapeOf(words: string): string {
  return words.replace(/"[^"]*"|'[^']*'|[^a-zA-Z ]+/g, "#").slice(0, 48);
}
