import type { HttpControlClient, ReadResult } from "../../control/client/index.ts";
import { type Clock, HearthError, type Json } from "../../core/index.ts";
import type { ExitName, FlagValues } from "../command.ts";
import type { Io } from "../terminal.ts";
import { openHttp, type readFlags, refusalText } from "./connect.ts";
import { membersOf } from "./documents.ts";

/** Exit codes of a query to an agent or router, in addition to those of every command. */
export const READ_EXITS: readonly ExitName[] = ["refused", "noAnswer", "interrupted"];

/** Flags of a query. `socket` is absent for routers, which have no socket. */
export type AskFlags = Omit<FlagValues<typeof readFlags>, "socket"> & {
  readonly socket?: string | null;
};

export interface AskContext {
  /** Name of the command, for example `ctl tree`. */
  readonly name: string;
  readonly flags: AskFlags;
  readonly io: Io;
  readonly clock: Clock;
  interrupt(): AbortSignal;
}

type Query = Readonly<Record<string, string | number | null>>;

/**
 * Reply to a query. `exit`: no reply came, the error was printed, and the command ends with
 * this exit code.
 */
export type Answer =
  | { readonly ok: true; readonly document: Json }
  | { readonly ok: false; readonly exit: ExitName };

/** Sends queries to one agent or router over HTTP. Prints errors to standard error. */
export class Asking implements AsyncDisposable {
  readonly #context: AskContext;
  readonly #http: HttpControlClient;
  readonly #signal: AbortSignal;

  private constructor(context: AskContext, http: HttpControlClient) {
    this.#context = context;
    this.#http = http;
    this.#signal = context.interrupt();
  }

  /** Opens the connection. Throws USAGE if --nats is given, because NATS carries only commands. */
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
  /** The `next` value of the previous page; null for the first page. */
  readonly after: string | number | null;
  /** Maximum number of entries of all pages together. */
  readonly limit: number;
  /** Name of the list in each page. */
  readonly list: string;
}

export type Pages =
  | { readonly ok: true; readonly next: string | number | null }
  | { readonly ok: false; readonly exit: ExitName };

/**
 * Reads pages until they contain `limit` entries. In the result, `next` continues after the last
 * page; null at the end of the list.
 */
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
    // A page is short or empty if the agent filtered out entries; count at least one, so that the
    // loop ends.
    left -= Array.isArray(entries) ? Math.max(1, entries.length) : left;
  }
  return { ok: true, next };
}
