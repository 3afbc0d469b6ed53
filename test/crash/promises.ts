import type { Commander } from "./commands/commander.ts";
import type { Oracle } from "./oracle.ts";

/** What must be there, and what takes that away again. */
export interface Promises {
  mustHave(id: number): boolean;
  /** Somebody tampered with the block's file: a miss is legal again. */
  damaged(id: number): void;
  /** The folders are empty. */
  nextLife(): void;
}

/** Of persistence and, where commands are sent, of pins and leases. */
export function promisesOf(oracle: Oracle, commander: Commander | null): Promises {
  return {
    mustHave: (id) =>
      oracle.mustHave(id) || (commander?.model.isPromised(id, performance.now()) ?? false),
    damaged(id) {
      oracle.damaged(id);
      commander?.damaged(id);
    },
    nextLife() {
      oracle.nextLife();
      commander?.nextLife();
    },
  };
}
