import type { HttpControlClient, ReadResult } from "../../control/client/index.ts";
import { type Clock, HearthError, type Json } from "../../core/index.ts";
import type { ExitName, FlagValues } from "../command.ts";
import type { Io } from "../terminal.ts";
import { openHttp, type readFlags, refusalText } from "./connect.ts";
import { membersOf } from "./documents.ts";

/** How a query to an agent or router can end, besides the exits of every command. */
export const READ_EXITS: readonly ExitName[] = ["refused", "noAnswer", "interrupted"];

/** Flags of a query; routers have no socket. */
export type AskFlags = Omit<FlagValues<typeof readFlags>, "socket"> & {
  readonly socket?: string | null;
};

export interface AskContext {
  /** Name of the command: `ctl tree`. */
  readonly name: string;
  readonly flags: AskFlags;
  readonly io: Io;
  readonly clock: Clock;
  interrupt(): AbortSignal;
}

type Query = Readonly<Record<string, string | number | null>>;

/** `exit`: there is no answer; the error is printed, and this is the exit of the command. */
export type Answer =
  | { readonly ok: true; readonly document: Json }
  | { readonly ok: false; readonly exit: ExitName };

/** Queries one agent or router over HTTP; prints errors to standard error. */
export class Asking implements AsyncDisposable {
  readonly #context: AskContext;
  readonly #http: HttpControlClient;
  readonly #signal: AbortSignal;

  private constructor(context: AskContext, http: HttpControlClient) {
    this.#context = context;
    this.#http = http;
    this.#signal = context.interrupt();
  }

  /** Throws USAGE if --nats is given: NATS carries commands only. */
  static async open(context: AskContext): Promise<Asking> {
    const { name, flags, clock } = context;
    if (flags.nats === null) return new Asking(context, await openHttp(flags, clock));
    throw new HearthError("USAGE", `\`hearth ${name}\` does not go through NATS`, {
      fix: "ask over HTTP: --api URL",
    });
  }

  async get(path: string, query: Query = {}): Promise<Answer> {
    return this.#answer(await this.#http.get(path, { ...this.#options(), query }));
  }

  async post(path: string, body: Json): Promise<Answer> {
    return this.#answer(await this.#http.post(path, body, this.#options()));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#http[Symbol.asyncDispose]();
  }

  #options() {
    return { deadlineMs: this.#context.flags.deadline, signal: this.#signal };
  }

  #answer(result: ReadResult): Answer {
    if (result.kind === "document") return { ok: true, document: result.document };
    const { name, io, flags } = this.#context;
    io.err.write(`hearth ${name}: ${refusalText(flags, result.status, result.why)}\n`);
    return { ok: false, exit: result.kind === "refused" ? "refused" : "noAnswer" };
  }
}

const PAGE_MAX = 1_000;

export interface PagesQuery {
  readonly path: string;
  readonly query: Query;
  /** `next` of the previous page; null for the first page. */
  readonly after: string | number | null;
  /** Maximum entries of all pages together. */
  readonly limit: number;
  /** Name of the list in a page. */
  readonly list: string;
}

export type Pages =
  | { readonly ok: true; readonly next: string | number | null }
  | { readonly ok: false; readonly exit: ExitName };

/** Reads pages until `limit`. `next` continues after the last page; null at the end. */
export async function readPages(
  asking: Asking,
  { path, query, after, limit, list }: PagesQuery,
  onPage: (page: Json) => void,
): Promise<Pages> {
  let next = after;
  for (let left = limit; left > 0; ) {
    const answer = await asking.get(path, {
      ...query,
      limit: Math.min(left, PAGE_MAX),
      after: next,
    });
    if (!answer.ok) return answer;
    onPage(answer.document);
    const page = membersOf(answer.document);
    const entries = page[list];
    if (typeof page.next !== "string" && typeof page.next !== "number") {
      return { ok: true, next: null };
    }
    next = page.next;
    // A page may be short, or empty if all of its entries were filtered out.
    left -= Array.isArray(entries) ? Math.max(1, entries.length) : left;
  }
  return { ok: true, next };
}
