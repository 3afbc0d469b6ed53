import type { Legal, Oracle, Verdict } from "./oracle.ts";
import type { Promises } from "./promises.ts";

const COMPLAINTS_MAX = 20;

/** Counts what the agent answered, and says in words what it should not have. */
export class Tally {
  wrongBytes = 0;
  resurrected = 0;
  lost = 0;
  failedRestarts = 0;
  verified = 0;
  commits = 0;
  purges = 0;
  persists = 0;
  fscks = 0;
  readonly complaints: string[] = [];
  /** Of the cycle at hand, for complaints. */
  where = "";
  /** What must be there; by the oracle alone unless set. */
  promises: Pick<Promises, "mustHave" | "damaged">;
  readonly #oracle: Oracle;

  constructor(oracle: Oracle) {
    this.#oracle = oracle;
    this.promises = oracle;
  }

  complain(text: string): void {
    if (this.complaints.length < COMPLAINTS_MAX) this.complaints.push(`${this.where}: ${text}`);
  }

  read(id: number, bytes: number, verdict: Verdict): void {
    this.verified++;
    if (verdict === "right") return;
    if (verdict === "resurrected") this.resurrected++;
    else this.wrongBytes += Math.max(1, bytes);
    this.complain(`block ${id} of ${bytes} bytes is ${verdict}`);
  }

  present(id: number, before: Legal): void {
    if (this.#oracle.mayExist(id, before)) return;
    this.resurrected++;
    this.complain(`block ${id} is said to be present, and was purged`);
  }

  committed(id: number, stored: boolean): void {
    if (stored) this.commits++;
    else this.complain(`a commit of block ${id} was refused`);
  }

  missed(id: number): void {
    if (!this.promises.mustHave(id)) return;
    this.lost++;
    this.promises.damaged(id);
    this.complain(`block ${id} was promised and is not there`);
  }
}
