import { DIGEST_BYTES, type WorkerId } from "../../../src/core/index.ts";
import type { Hashing } from "../../../src/identity/index.ts";
import {
  type BlockNamer,
  type Commander,
  type CommandOutcome,
  type CostTerms,
  createDigestNamer,
  POLICY_DEFAULTS,
  Policies,
  type PolicyAction,
  type PolicyCommand,
  type PolicyCounts,
  type PolicyName,
  type PolicySettings,
  type RouteRequest,
  type RouterObserver,
  type Target,
  type TargetId,
  type WorkerEvent,
} from "../../../src/router/index.ts";
import { ManualClock } from "../../support/index.ts";

/** Tokens of a block; one word of a prompt is one block. */
export const BLOCK = 4;
export const MODEL = "m";

export interface Sent {
  readonly worker: string;
  readonly command: PolicyCommand;
}

/** Digests that need no library: SHA-256 over key and tokens. */
const hashing = {
  prefixDigests(key, tokens, blockTokens, out) {
    const blocks = Math.floor(tokens.length / blockTokens);
    for (let block = 0; block < blocks; block++) {
      const prefix = tokens.slice(0, (block + 1) * blockTokens);
      const hash = new Bun.CryptoHasher("sha256").update(key).update(prefix).digest();
      out.set(hash, block * DIGEST_BYTES);
    }
    return blocks;
  },
} as Partial<Hashing> as Hashing;

export const namer = createDigestNamer(hashing);

/** Each word its own number, four times over. */
export function tokensOf(text: string): Uint32Array {
  const words = text.split(" ").filter((word) => word !== "");
  const numbers = words.map((word) => Number(Bun.hash.xxHash32(word)));
  return Uint32Array.from(numbers.flatMap((number) => new Array(BLOCK).fill(number)));
}

export function targetOf(worker: string, namespace = 1): Target {
  const namespaceKey = new Uint8Array(DIGEST_BYTES).fill(namespace);
  return {
    id: (Bun.hash.xxHash32(worker) & 0xffff) as TargetId,
    worker: worker as WorkerId,
    rank: 0,
    model: MODEL,
    role: "both",
    url: null,
    totalBlocks: null,
    batchTokensMax: null,
    spaces: [{ kind: "blocks", model: MODEL, blockTokens: BLOCK, namespaceKey }],
    state: "live",
    isKnown: true,
  } as Target;
}

/** Names of the blocks of a prompt, from a block on. */
export function namesOf(text: string, from = 0, to?: number): string[] {
  const request = { model: MODEL, prompt: { kind: "tokens", tokens: tokensOf(text) } } as const;
  const chain = namer.chain(targetOf("w"), request)!;
  return chain.names(from, to ?? chain.blocks);
}

export function done(blocks = 1, bytes = 0): CommandOutcome {
  return { kind: "receipt", counts: { done: blocks }, bytes, ttlSeconds: null };
}

export function missing(blocks = 1): CommandOutcome {
  return { kind: "receipt", counts: { done: 0, missing: blocks }, bytes: 0, ttlSeconds: null };
}

type Overrides = { readonly [Name in keyof PolicySettings]?: Partial<PolicySettings[Name]> };

export interface KitParts {
  readonly clock?: ManualClock;
  readonly namer?: BlockNamer;
  /** Sends to agents that are there. */
  readonly commander?: Commander;
}

/** Policies beside a router that is played by the test, on a clock that stands still. */
export class PolicyKit implements Disposable {
  readonly clock: ManualClock;
  readonly sent: Sent[] = [];
  readonly actions = new Map<string, PolicyAction[]>();
  readonly policies: Policies;
  /** Answers of the agents; every command is done unless a test says otherwise. */
  answer: (sent: Sent) => CommandOutcome | Promise<CommandOutcome> = () => done();
  #observer: RouterObserver = {};
  #news: (news: WorkerEvent) => void = () => undefined;
  #requests = 0;
  listeners = 0;

  constructor(overrides: Overrides = {}, parts: KitParts = {}) {
    const { clock = new ManualClock(), commander } = parts;
    this.clock = clock;
    this.policies = new Policies({
      clock,
      settings: settingsOf(overrides),
      namer: parts.namer ?? namer,
      commander: {
        send: async (worker, command) => {
          this.sent.push({ worker, command });
          const answer = commander?.send(worker, command) ?? this.answer({ worker, command });
          return await answer;
        },
      },
      router: {
        listen: (observer) => {
          this.#observer = observer;
          return this.#listening(() => (this.#observer = {}));
        },
        noteAction: (requestId, action) => {
          this.actions.set(requestId, [...(this.actions.get(requestId) ?? []), action]);
          return true;
        },
      },
      table: {
        targets: [],
        listen: (listener) => {
          this.#news = listener;
          return this.#listening(() => (this.#news = () => undefined));
        },
      },
    });
  }

  /** A request of a session (null: of none) for words, one block each; its id. */
  route(
    session: string | null,
    text: string,
    worker = "w",
    more: Partial<RouteRequest> = {},
    prefill: string | null = null,
  ) {
    const requestId = more.requestId ?? `r${++this.#requests}`;
    const target = targetOf(worker);
    const request: RouteRequest = {
      model: MODEL,
      prompt: { kind: "tokens", tokens: tokensOf(text) },
      ...(session === null ? {} : { sessionId: session }),
      ...more,
      requestId,
    };
    const decision = {
      ...{ kind: "routed" as const, target, terms: {} as CostTerms },
      ...{ promptTokens: 0, queuedMs: 0 },
      prefill: prefill === null ? null : targetOf(prefill),
    };
    this.#observer.routed?.(request, decision, new BigUint64Array(0));
    return requestId;
  }

  prefilled(requestId: string): void {
    this.#observer.prefillComplete?.(requestId);
  }

  free(requestId: string): void {
    this.#observer.freed?.(requestId, "free");
  }

  /** A whole request. */
  async ask(session: string | null, text: string, worker = "w"): Promise<string> {
    const id = this.route(session, text, worker);
    this.prefilled(id);
    this.free(id);
    await this.settle();
    return id;
  }

  joined(worker: string, more: Partial<Target> = {}): void {
    this.#news({ kind: "joined", target: { ...targetOf(worker), ...more } });
  }

  changed(worker: string, more: Partial<Target>): void {
    this.#news({ kind: "changed", target: { ...targetOf(worker), ...more } });
  }

  left(worker: string): void {
    this.#news({ kind: "left", target: targetOf(worker) });
  }

  /** Lets time pass in ticks, and receipts come. */
  async pass(ms: number, stepMs = 1_000): Promise<void> {
    await this.clock.advanceAsync(ms, stepMs);
    await this.settle();
  }

  async settle(): Promise<void> {
    for (let turn = 0; turn < 3; turn++) await new Promise((resolve) => setImmediate(resolve));
  }

  counts(policy: PolicyName): PolicyCounts {
    const found = this.policies.counts.find((counts) => counts.policy === policy);
    if (found === undefined) throw new Error(`${policy} is off`);
    return found;
  }

  /** Commands that were sent, of one type. */
  of(type: PolicyCommand["type"]): Sent[] {
    return this.sent.filter(({ command }) => command.type === type);
  }

  [Symbol.dispose](): void {
    this.policies[Symbol.dispose]();
  }

  #listening(end: () => void): Disposable {
    this.listeners++;
    return {
      [Symbol.dispose]: () => {
        this.listeners--;
        end();
      },
    };
  }
}

function settingsOf(overrides: Overrides): PolicySettings {
  const small = { tokensMin: BLOCK, mode: "off" as const };
  const entries = Object.entries(POLICY_DEFAULTS).map(([name, standard]) => {
    const given = overrides[name as keyof PolicySettings] as object | undefined;
    if (typeof standard !== "object") return [name, given ?? standard];
    const less = "tokensMin" in standard ? { tokensMin: small.tokensMin } : {};
    const slack = "slackTokens" in standard ? { slackTokens: 0 } : {};
    return [name, { ...standard, ...less, ...slack, ...given }];
  });
  return Object.fromEntries(entries) as PolicySettings;
}
