/** Something that takes bytes from anybody, and what it must do with them. */
export interface Target {
  readonly name: string;
  /** Good inputs, from which bad ones are made. */
  readonly corpus: readonly Uint8Array[];
  /** Refusals are an answer; whatever it throws is a crash. */
  run(input: Uint8Array): void;
  /** Checked now and then, and at the end. */
  settle?(): void;
  close?(): Promise<void>;
}

/** A property that an accepted input must have. */
export function must(condition: boolean, what: string): void {
  if (!condition) throw new Error(`property broken: ${what}`);
}
