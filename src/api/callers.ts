import type { Sender } from "../control/index.ts";
import { assert, type TurnSource } from "../core/index.ts";
import type { Caller } from "./gate.ts";

/** Who sent each request that was let in: the router hands nothing but the request on. */
export class Callers {
  readonly #callers = new WeakMap<
    Request,
    { readonly caller: Caller; readonly source: TurnSource }
  >();

  set(request: Request, caller: Caller, source: TurnSource): void {
    this.#callers.set(request, { caller, source });
  }

  /** In whose slices of the event loop its work is done. */
  sourceOf(request: Request): TurnSource {
    return this.#entryOf(request).source;
  }

  senderOf(request: Request): Sender {
    const { caller } = this.#entryOf(request);
    const { name, from, role, roleKey, account } = caller;
    const known = account === null ? {} : { account };
    return { via: "http", name, from, role, roleKey, ...known, broadcast: false };
  }

  #entryOf(request: Request) {
    const entry = this.#callers.get(request);
    assert(entry !== undefined, "a request passed the gate");
    return entry;
  }
}
