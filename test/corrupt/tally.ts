/** What became of cases of one kind. */
export interface KindTally {
  cases: number;
  /** A miss, or a checksum that said so, and nothing served. */
  detected: number;
  /** Nothing was wrong with the bytes served, as expected of what touches no payload. */
  harmless: number;
  /** The right bytes, though the damage should have been seen. */
  unseen: number;
  /** Wrong bytes that passed for right. */
  served: number;
}

/** Counts of a run; `controls` are blocks that nothing was done to. */
export class Tally {
  readonly kinds = new Map<string, KindTally>();
  readonly failures: string[] = [];
  controls = 0;
  /** Sound blocks that were not served. */
  falseAlarms = 0;

  add(kind: string, outcome: Exclude<keyof KindTally, "cases">, where: string): void {
    let tally = this.kinds.get(kind);
    if (tally === undefined) {
      tally = { cases: 0, detected: 0, harmless: 0, unseen: 0, served: 0 };
      this.kinds.set(kind, tally);
    }
    tally.cases++;
    tally[outcome]++;
    if (outcome === "unseen" || outcome === "served") this.fail(`${kind}: ${outcome}, ${where}`);
  }

  control(wasRight: boolean, where: string): void {
    this.controls++;
    if (wasRight) return;
    this.falseAlarms++;
    this.fail(`a sound block was not served, ${where}`);
  }

  fail(text: string): void {
    if (this.failures.length < FAILURES_MAX) this.failures.push(text);
  }

  sum(field: keyof KindTally): number {
    return [...this.kinds.values()].reduce((sum, tally) => sum + tally[field], 0);
  }

  /** Every failure is one of these, or an answer that must not be. */
  get isClean(): boolean {
    return this.failures.length === 0;
  }
}

const FAILURES_MAX = 100;
