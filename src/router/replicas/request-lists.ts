import type { Bus, BusMessage, Subscription } from "../../bus/index.ts";
import { ACTIVE_SEQUENCES_MAX } from "../../events/index.ts";
import { encodeNews, type NewsContext, readNews } from "./load-codec.ts";
import type { LoadNews, SharedRequest } from "./load-news.ts";
import type { OwnerBook } from "./owner-book.ts";
import type { RouterId } from "./router-id.ts";
import type { SharedLoad } from "./shared-load.ts";
import type { ReplicaSubjects } from "./subjects.ts";

export interface RequestListsOptions {
  readonly bus: Bus;
  readonly subjects: ReplicaSubjects;
  readonly self: RouterId;
  readonly owners: OwnerBook;
  readonly load: SharedLoad;
  readonly answerMs: number;
  readonly context: NewsContext;
}

/** The header that says where the next page begins; without it there is none. */
const NEXT = "Hearth-Next";
const PAGE_REQUESTS = ACTIVE_SEQUENCES_MAX;
const PAGE_BYTES = 256 * 1024;
/** More pages than that no honest router has. */
const PAGES_MAX = 4_096;

/** Live requests of one router as a list, for one that joined late or lost something. */
export class RequestLists implements Disposable {
  readonly #options: RequestListsOptions;
  readonly #subscription: Subscription;

  constructor(options: RequestListsOptions) {
    const { bus, subjects, self } = options;
    this.#options = options;
    this.#subscription = bus.subscribe(subjects.requestsOf(self), (message) => this.#tell(message));
  }

  [Symbol.dispose](): void {
    this.#subscription.unsubscribe();
  }

  /** Counts what `router` answers for, and nothing else of it; false: it did not tell. */
  async take(router: RouterId, signal: AbortSignal): Promise<boolean> {
    const { owners, load } = this.#options;
    const upTo = owners.latest;
    const seen = new Set<string>();
    let after: string | null = "0";
    for (let page = 0; page < PAGES_MAX && after !== null; page++) {
      const answer = await this.#ask(router, after, signal);
      if (answer === null) return false;
      for (const request of answer.requests) {
        seen.add(request.id);
        load.hearListed(router, request);
      }
      after = answer.next;
    }
    const left: string[] = [];
    for (const [id] of owners.idsOf(router, 0, upTo)) if (!seen.has(id)) left.push(id);
    load.end(left);
    return after === null;
  }

  async #ask(
    router: RouterId,
    after: string,
    signal: AbortSignal,
  ): Promise<{ requests: SharedRequest[]; next: string | null } | null> {
    const { bus, subjects, answerMs: timeoutMs } = this.#options;
    const data = Buffer.from(after);
    const outcome = await bus.request(subjects.requestsOf(router), data, { timeoutMs, signal });
    if (outcome.kind !== "reply") return null;
    const read = readNews(outcome.message.data, this.#options.context);
    if (read?.router !== router) return null;
    const requests = read.news.flatMap((news) => (news.kind === "add" ? [news.request] : []));
    return { requests, next: outcome.message.headers[NEXT] ?? null };
  }

  #tell({ data, reply }: BusMessage): void {
    const { bus, owners, load, self } = this.#options;
    const after = Number(Buffer.from(data.subarray(0, 20)).toString());
    if (reply === null || !Number.isSafeInteger(after)) return;
    const news: LoadNews[] = [];
    let bytes = 0;
    let next: number | null = null;
    for (const [id, number] of owners.idsOf(self, after)) {
      if (news.length >= PAGE_REQUESTS || bytes >= PAGE_BYTES) break;
      next = number;
      const request = load.share(id);
      if (request === null) continue;
      news.push({ kind: "add", request });
      bytes += request.hashes.byteLength + id.length;
    }
    const isLast = next === null || owners.idsOf(self, next).next().done === true;
    const headers = isLast ? {} : { [NEXT]: String(next) };
    bus.publish(reply, encodeNews(self, 0, news), { headers });
  }
}
