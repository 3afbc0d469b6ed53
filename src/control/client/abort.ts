import { HearthError } from "../../core/index.ts";

/** What a wait ends with when its signal fires: the fault it fired with, else ABORTED. */
export function abortFault(signal: AbortSignal): HearthError {
  const reason: unknown = signal.reason;
  if (reason instanceof HearthError) return reason;
  return new HearthError("ABORTED", "the wait for an answer was given up", { cause: reason });
}

/** What `wait` gives, or the fault as soon as the signal fires. */
export function unlessAborted<T>(wait: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return wait;
  return new Promise((resolve, reject) => {
    const onAbort = () => reject(abortFault(signal));
    if (signal.aborted) return onAbort();
    signal.addEventListener("abort", onAbort, { once: true });
    const done = () => signal.removeEventListener("abort", onAbort);
    wait.then(resolve, reject).finally(done);
  });
}
