/** One claim, and the finding about it. */
export interface Claim {
  readonly what: string;
  readonly holds: boolean;
  readonly found: unknown;
  readonly wanted: unknown;
}

/** The claims of a scenario; it continues after one that does not hold. */
export class Claims {
  readonly list: Claim[] = [];

  /** The two are the same, member by member. */
  equal<T>(what: string, found: T, wanted: NoInfer<T>): void {
    this.list.push({ what, holds: Bun.deepEquals(found, wanted, true), found, wanted });
  }

  that(what: string, holds: boolean, found: unknown): void {
    this.list.push({ what, holds, found, wanted: "so" });
  }
}
