import type { PinKind } from "../../../src/store/pins/index.ts";

export interface ReceiptBlock {
  readonly block: string;
  readonly outcome: string;
  readonly reason?: string;
}

/** A receipt as it travels, as far as the test looks at it. */
export interface Receipt {
  readonly id: string;
  readonly type: string;
  readonly status: "ok" | "partial" | "rejected" | "running";
  readonly reason?: string;
  readonly duplicate?: true;
  readonly counts: Readonly<Record<string, number>>;
  readonly blocks: readonly ReceiptBlock[];
  readonly held?: readonly ReceiptBlock[];
  readonly ttl_seconds?: number;
}

/** One entry of `/v1/pins` or `/v1/leases`. */
export interface ListedHold {
  readonly kind: PinKind;
  readonly owner: string;
  readonly name: string | null;
  readonly blocks: number;
  readonly remaining_seconds: number | null;
}

/** What was listed, and between which moments (of the monotonic clock) that was so. */
export interface Listing {
  readonly kind: PinKind;
  readonly holds: readonly ListedHold[];
  readonly askedMs: number;
  readonly answeredMs: number;
}

export interface TreeEntry {
  readonly digest: string | null;
  readonly pins: number;
  readonly tiers: readonly string[];
  readonly held_by: readonly { kind: string; owner?: string; name?: string }[];
}

export interface AgentEvent {
  readonly sequence: number;
  readonly kind: string;
  readonly hold?: string;
  readonly owner?: string;
  readonly name?: string | null;
  readonly purged?: number;
  readonly why?: string;
}

const LISTS = { pin: "/v1/pins", retain: "/v1/pins?kind=retain", lease: "/v1/leases" };
const FIELDS = "digest,pins,tiers,held_by";
/** Statuses that carry a receipt. */
const RECEIPTS = [200, 202, 403, 409, 413, 422, 429, 500, 501, 503];

/** The HTTP interface of one run of the agent. */
export class AgentDoor {
  readonly #url: string;

  constructor(url: string) {
    this.#url = url;
  }

  /** Throws where no answer comes. */
  async command(body: object): Promise<Receipt> {
    const { status, text } = await this.#ask("POST", "/v1/commands", JSON.stringify(body));
    if (!RECEIPTS.includes(status)) throw new Error(`/v1/commands answered ${status}: ${text}`);
    return JSON.parse(text) as Receipt;
  }

  /** Null where no command of this id is known. */
  async receipt(issuer: string, id: string): Promise<Receipt | null> {
    const path = `/v1/commands/${id}?issuer=${issuer}`;
    const { status, text } = await this.#ask("GET", path);
    if (status === 404) return null;
    if (status !== 200) throw new Error(`${path} answered ${status}: ${text}`);
    return JSON.parse(text) as Receipt;
  }

  async list(kind: PinKind): Promise<Listing> {
    const askedMs = performance.now();
    const holds: ListedHold[] = [];
    type Page = { pins?: ListedHold[]; leases?: ListedHold[]; next: number | null };
    for (let after: number | null = 0; after !== null; ) {
      const page: Page = await this.#get(LISTS[kind], { limit: 1_000, after });
      holds.push(...(page.pins ?? page.leases ?? []));
      after = page.next;
    }
    return { kind, holds, askedMs, answeredMs: performance.now() };
  }

  /** Every block the agent knows of. */
  async tree(): Promise<TreeEntry[]> {
    const blocks: TreeEntry[] = [];
    type Page = { blocks: TreeEntry[]; next: string | null };
    for (let after: string | null = ""; after !== null; ) {
      const query = { fields: FIELDS, limit: 1_000, ...(after === "" ? {} : { after }) };
      const page: Page = await this.#get("/v1/tree", query);
      blocks.push(...page.blocks);
      after = page.next;
    }
    return blocks;
  }

  async events(after: number): Promise<{ events: AgentEvent[]; next: number; lost: number }> {
    return this.#get("/v1/events", { after, limit: 1_000 });
  }

  async #get<T>(path: string, query: Record<string, string | number>): Promise<T> {
    const words = new URLSearchParams(query as Record<string, string>);
    const { status, text } = await this.#ask(
      "GET",
      `${path}${path.includes("?") ? "&" : "?"}${words}`,
    );
    if (status !== 200) throw new Error(`${path} answered ${status}: ${text}`);
    return JSON.parse(text) as T;
  }

  async #ask(
    method: string,
    path: string,
    body?: string,
  ): Promise<{ status: number; text: string }> {
    const response = await fetch(this.#url + path, {
      method,
      headers: { "content-type": "application/json" },
      keepalive: false,
      ...(body === undefined ? {} : { body }),
    });
    return { status: response.status, text: await response.text() };
  }
}
