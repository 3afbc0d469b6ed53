import type { ControlServices } from "../../src/api/index.ts";
import {
  decodeCommand,
  REFUSALS,
  type Receipt,
  type RefusalCode,
  type Sender,
} from "../../src/control/index.ts";
import type { EventPage } from "../../src/observability/activity/index.ts";
import type { ExplainQuery, Explanation, TreePage, TreeQuery } from "../../src/store/index.ts";
import type { PinInfo } from "../../src/store/pins/index.ts";

export const NO_COUNTS = { done: 0, already: 0, missing: 0, held: 0, deferred: 0, rejected: 0 };

export function receiptOf(members: Partial<Receipt> = {}): Receipt {
  return {
    id: null,
    type: "Cache",
    worker_id: "gpu-01",
    incarnation: "18446744073709551615",
    issuer: "local",
    status: "ok",
    counts: NO_COUNTS,
    blocks: [],
    elapsed_ms: 1.5,
    ...members,
  };
}

export function holdOf(id: number, members: Partial<PinInfo> = {}): PinInfo {
  return {
    id,
    kind: "pin",
    owner: "somebody",
    name: null,
    blocks: 2,
    bytes: 200,
    remainingMs: 1_500,
    ageMs: 250,
    priority: null,
    priorityNow: null,
    idleMs: null,
    ...members,
  };
}

export interface Submitted {
  readonly body: Uint8Array;
  readonly contentType: string | null;
  readonly sender: Sender;
  readonly signature?: string;
}

/** Fake control plane with scripted answers. It records its calls. */
export class FakeControl implements ControlServices {
  readonly submitted: Submitted[] = [];
  readonly flushes: Sender[] = [];
  readonly unfenced: string[] = [];
  readonly trees: TreeQuery[] = [];
  readonly explained: ExplainQuery[] = [];
  readonly receipts = new Map<string, Receipt>();
  answer: (submitted: Submitted) => Receipt | Promise<Receipt> = ({ body, contentType }) => {
    const decoded = decodeCommand(body, contentType);
    if (!decoded.ok) return refused(decoded.refusal.code, { id: decoded.head.id });
    const { id, type, issuer } = decoded.command;
    return receiptOf({ id, type, issuer: issuer ?? "local" });
  };
  flushed: Receipt = receiptOf({ type: "Flush" });
  all: PinInfo[] = [];
  treePage: TreePage = { blocks: [], next: null, missing: false };
  isForeign: (after: string) => boolean = () => false;
  explanation: Explanation = { leading: 0, blocks: [], miss: null };
  eventPage: EventPage = { events: [], last: 0, lost: 0 };
  readonly plane = this;
  readonly holds = this;
  readonly inspector = this;
  readonly events = this;
  readonly store = this;

  async submit(
    body: Uint8Array,
    contentType: string | null,
    sender: Sender,
    { signature = null }: { readonly signature?: string | null } = {},
  ): Promise<Receipt> {
    const signed = signature === null ? {} : { signature };
    const submitted = { body, contentType, sender, ...signed };
    this.submitted.push(submitted);
    return this.answer(submitted);
  }

  find(id: string, issuer: string | null): Receipt | null {
    const receipt = this.receipts.get(id) ?? null;
    return receipt !== null && (issuer === null || receipt.issuer === issuer) ? receipt : null;
  }

  unfence(issuer: string): number {
    return this.unfenced.push(issuer);
  }

  async flush(sender: Sender): Promise<Receipt> {
    this.flushes.push(sender);
    return this.flushed;
  }

  list({ kind, owner, after, max }: Parameters<ControlServices["holds"]["list"]>[0]) {
    const found = this.all.filter(
      (one) => (kind ?? one.kind) === one.kind && (owner ?? one.owner) === one.owner,
    );
    const rest = found.filter(({ id }) => id > after);
    const holds = rest.slice(0, max);
    return { holds, next: rest.length > max ? holds.at(-1)!.id : null };
  }

  figures(owner: string | null) {
    return {
      capacityBytes: 2 ** 40,
      hostBudgetBytes: 2 ** 39,
      hostUsedBytes: 300,
      ownerBudgetBytes: 2 ** 38,
      ownerUsedBytes: owner === null ? 0 : 100,
    };
  }

  async tree(query: TreeQuery): Promise<TreePage> {
    this.trees.push(query);
    const isForeign = query.after !== null && this.isForeign(query.after);
    return isForeign ? { blocks: [], next: null, missing: true } : this.treePage;
  }

  async explain(query: ExplainQuery): Promise<Explanation> {
    this.explained.push(query);
    return this.explanation;
  }

  nowSeconds(): number {
    return 1_000;
  }

  page(_after: number, _max: number): EventPage {
    return this.eventPage;
  }
}

export function refused(
  word: RefusalCode,
  { type = "", id = null }: Partial<Pick<Receipt, "type" | "id">> = {},
): Receipt {
  const reason = `${word}: ${REFUSALS[word].meaning}`;
  return receiptOf({ type, id, status: "rejected", reason });
}
