import type { Clock } from "../../core/index.ts";
import type { Credentials, Trust } from "../trust.ts";
import { createJudge } from "./judge.ts";

/** Trust whose credentials change only by `change`. */
export interface ChangeableTrust extends Trust {
  change(credentials: Credentials): void;
}

/** Believes what `credentials` say; they are not checked here. */
export function createTrust(credentials: Credentials, clock: Clock): ChangeableTrust {
  const listeners = new Set<() => void>();
  let current = { credentials, judge: createJudge(credentials) };
  return {
    get credentials() {
      return current.credentials;
    },
    judge: (der, dialled) => current.judge.judge(der, dialled, clock.wallMs()),
    onChange(listener) {
      const entry = () => listener();
      listeners.add(entry);
      return { [Symbol.dispose]: () => void listeners.delete(entry) };
    },
    change(next) {
      current = { credentials: next, judge: createJudge(next) };
      for (const listener of [...listeners]) listener();
    },
  };
}
