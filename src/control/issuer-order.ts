/** Where a command stands among those of its issuer. */
export interface Place {
  /** Lanes in which it stands: those behind it there wait until it has changed its holds. */
  readonly lanes: readonly string[];
  /** Other lanes of which it waits for those before it. */
  readonly behind: readonly string[] | "all";
}

type Lanes = Map<string, Promise<void>>;

/**
 * Lets the commands of one issuer change holds in the order in which they came, where that makes a
 * difference. Each waits until those before it have changed what they change, not until that is
 * durable.
 */
export class IssuerOrder {
  /** By issuer the last in each lane that has not changed its holds yet. */
  readonly #issuers = new Map<string, Lanes>();

  /** Issuers of which a command has not changed its holds yet. */
  get waiting(): number {
    return this.#issuers.size;
  }

  /**
   * Takes the next place. `before` resolves when it is this command's turn, and is null where it is
   * at once; `done` lets those behind it go, and may be called more than once.
   */
  next(
    issuer: string,
    { lanes: own, behind }: Place,
  ): { readonly before: Promise<unknown> | null; readonly done: () => void } {
    const lanes = this.#issuers.get(issuer);
    const waitsFor = lanes === undefined ? [] : lastOf(lanes, own, behind);
    const before = waitsFor.length === 0 ? null : Promise.all(waitsFor);
    if (own.length === 0) return { before, done: () => undefined };
    return { before, done: this.#stand(issuer, own) };
  }

  #stand(issuer: string, own: readonly string[]): () => void {
    const { promise, resolve } = Promise.withResolvers<void>();
    let lanes = this.#issuers.get(issuer);
    if (lanes === undefined) {
      lanes = new Map();
      this.#issuers.set(issuer, lanes);
    }
    for (const lane of own) lanes.set(lane, promise);
    return () => {
      for (const lane of own) if (lanes.get(lane) === promise) lanes.delete(lane);
      if (lanes.size === 0 && this.#issuers.get(issuer) === lanes) this.#issuers.delete(issuer);
      resolve();
    };
  }
}

function lastOf(lanes: Lanes, own: readonly string[], behind: Place["behind"]): Promise<void>[] {
  if (behind === "all") return [...lanes.values()];
  return [...own, ...behind].flatMap((lane) => lanes.get(lane) ?? []);
}
