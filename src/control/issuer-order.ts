/**
 * Lets the commands of one issuer change holds in the order in which they came. Each waits until
 * the one before it has changed what it changes, not until that is durable.
 */
export class IssuerOrder {
  readonly #last = new Map<string, Promise<void>>();

  /** Issuers of which a command has not changed its holds yet. */
  get waiting(): number {
    return this.#last.size;
  }

  /**
   * Takes the next place. `before` resolves when it is this command's turn, and is null where it is
   * at once; `done` lets the next one go, and may be called more than once.
   */
  next(issuer: string): { readonly before: Promise<void> | null; readonly done: () => void } {
    const before = this.#last.get(issuer) ?? null;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#last.set(issuer, promise);
    const done = () => {
      if (this.#last.get(issuer) === promise) this.#last.delete(issuer);
      resolve();
    };
    return { before, done };
  }
}
