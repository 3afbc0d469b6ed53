import { messageOf, sleep } from "../../core/index.ts";
import type { BucketWrite, ObjectFacts, ObjectRead, ObjectStore } from "../durable.ts";
import type { DurableParts } from "./durable-bus.ts";
import type { LinkObjects } from "./link-durable.ts";
import { refusal } from "./refusal.ts";

/** One call takes no longer, whatever the broker does. */
const CALL_MS = 30_000;
const NAME = /^[\x21-\x7e]{1,256}$/;
/** What the libraries say of an object whose bytes are not those that were put there. */
const DAMAGED = /corrupt|digest/i;
const NO_BUCKET = /not found|no responders/i;

/** Objects over whatever link there is at the moment; a call ends with the link it began on. */
export class LinkObjectStore implements ObjectStore {
  readonly #parts: DurableParts;
  readonly #bucket: string;

  constructor(parts: DurableParts, bucket: string) {
    this.#parts = parts;
    this.#bucket = bucket;
  }

  async get(name: string, bytesMax: number): Promise<ObjectRead> {
    if (!NAME.test(name)) return { kind: "missing" };
    try {
      const data = await this.#on((objects) => objects.get(name, bytesMax));
      if (data === UNREACHABLE) return { kind: "unreachable" };
      if (data === "too_large") return { kind: "too_large" };
      return data === null ? { kind: "missing" } : { kind: "value", data };
    } catch (thrown) {
      if (DAMAGED.test(messageOf(thrown))) return { kind: "damaged" };
      return { kind: refusal(thrown).kind === "refused" ? "missing" : "unreachable" };
    }
  }

  async put(name: string, data: Uint8Array): Promise<BucketWrite> {
    if (!NAME.test(name)) return { kind: "refused", why: "that is no name for an object" };
    return this.#write((objects) => objects.put(name, data));
  }

  async delete(name: string): Promise<BucketWrite> {
    if (!NAME.test(name)) return { kind: "done" };
    return this.#write(async (objects) => {
      try {
        await objects.delete(name);
      } catch (thrown) {
        // It is not there, which is what was wanted.
        if (!NO_BUCKET.test(messageOf(thrown))) throw thrown;
      }
    });
  }

  async list(): Promise<readonly ObjectFacts[] | null> {
    try {
      const facts = await this.#on((objects) => objects.list());
      return facts === UNREACHABLE ? null : facts;
    } catch {
      return null;
    }
  }

  async #write(use: (objects: LinkObjects) => Promise<void>): Promise<BucketWrite> {
    try {
      const done = await this.#on(async (objects) => {
        await use(objects);
        return true;
      });
      return { kind: done === UNREACHABLE ? "unreachable" : "done" };
    } catch (thrown) {
      return refusal(thrown);
    }
  }

  async #on<T>(use: (objects: LinkObjects) => Promise<T>): Promise<T | typeof UNREACHABLE> {
    const link = this.#parts.link();
    if (link === null || link.durable === null) return UNREACHABLE;
    const over = new AbortController();
    // The libraries may wait for ever on a connection that broke.
    const late = sleep(this.#parts.clock, CALL_MS, over.signal).catch(() => undefined);
    const gone = Promise.race([late, link.closed]).then((): typeof UNREACHABLE => UNREACHABLE);
    try {
      const work = link.durable.objects(this.#bucket).then(use);
      return await Promise.race([work, gone]);
    } finally {
      over.abort();
    }
  }
}

const UNREACHABLE: unique symbol = Symbol("unreachable");
