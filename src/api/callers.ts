import type { Sender } from "../control/index.ts";
import { assert } from "../core/index.ts";
import type { Caller } from "./gate.ts";

/** Who sent each request that was let in: the router hands nothing but the request on. */
export class Callers {
  readonly #callers = new WeakMap<Request, Caller>();

  set(request: Request, caller: Caller): void {
    this.#callers.set(request, caller);
  }

  senderOf(request: Request): Sender {
    const caller = this.#callers.get(request);
    assert(caller !== undefined, "a request passed the gate");
    const { name, from, role, roleKey, account } = caller;
    const known = account === null ? {} : { account };
    return { via: "http", name, from, role, roleKey, ...known, broadcast: false };
  }
}
