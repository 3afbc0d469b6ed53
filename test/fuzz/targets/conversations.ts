import { type Random, randomBelow } from "../../../src/core/index.ts";
import { Connection } from "../../../src/engine/index.ts";
import {
  encodeAliasRequest,
  encodeGpuEvictedRequest,
  encodeGpuStoredRequest,
  encodeHelloRequest,
  encodeIdentifyRequest,
  encodeMatchRequest,
  encodePingRequest,
  encodeSessionCommitRequest,
  encodeSessionListRequest,
  Op,
  sessionRequests,
} from "../../../src/engine/protocol/index.ts";
import { encodeManifest, manifestOf } from "../../../src/identity/index.ts";
import { must, type Saw, type Target } from "../target.ts";
import { EngineDouble, type Span } from "./engine-double.ts";
import { Script } from "./script.ts";
import { ARENA_BYTES, LIMITS, Stage, sessionOf } from "./stage.ts";

const ENGINES = 3;
const DIGESTS = 16;
const LAYERS = [0xffff_ffff, 7] as const;
/** The long one is hashed on another thread, so that its commit is answered later. */
const SIZES = [4096, 1, 4097, 12_288, 65_536, 300_000, 0, ARENA_BYTES, 0xffff_ffff] as const;
const VERIFY_EVERY = 16;

const MANIFESTS = ["a", "b"].map((model) =>
  encodeManifest(manifestOf({ model, dtype: "u8", layout: "fuzz:flat", blockTokens: 16 })),
);

function overlap(a: Span, b: Span): boolean {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

/** One input played: its bytes decide who does what next. */
class Conversation {
  readonly #stage: Stage;
  readonly #saw: Saw;
  readonly #script: Script;
  readonly #byConnection: Map<Connection, EngineDouble>;
  readonly #engines: EngineDouble[] = [];
  readonly #cast: (EngineDouble | null)[] = new Array<null>(ENGINES).fill(null);
  #damage: { readonly at: number; readonly bits: number } | null = null;
  #cut = 0;

  constructor(stage: Stage, input: Uint8Array, saw: Saw, lines: Map<Connection, EngineDouble>) {
    this.#stage = stage;
    this.#script = new Script(input);
    this.#saw = saw;
    this.#byConnection = lines;
  }

  async play(): Promise<void> {
    for (let step = 1; !this.#script.over; step++) {
      const act = this.#script.oneOf(this.#acts);
      act(this.#engine());
      if (step % VERIFY_EVERY === 0) this.#stage.verify();
    }
    for (const engine of this.#engines) this.#die(engine);
    while (this.#engines.some(({ connection }) => connection.working > 0)) {
      await new Promise((resolve) => setImmediate(resolve));
    }
    for (const { connection } of this.#engines) {
      must((connection.greeted?.holder.held ?? 0) === 0, "a buried holder holds nothing");
    }
    this.#stage.mustBeEmptyHanded();
  }

  /** The engine whose turn it is; a new process where the last one is gone. */
  #engine(): EngineDouble {
    const place = this.#script.below(ENGINES);
    const known = this.#cast[place];
    if (known?.live) return known;
    const { region, handle, onFault } = this.#stage;
    const engine = new EngineDouble(region, this.#saw, (span) => this.#checkAlone(engine, span));
    const options = { limits: LIMITS, handle, nowMs: () => 0, onFault };
    engine.connection = new Connection(this.#engines.length, engine.wire, options);
    this.#byConnection.set(engine.connection, engine);
    this.#cast[place] = engine;
    this.#engines.push(engine);
    engine.namespace = this.#script.below(MANIFESTS.length);
    const manifest = MANIFESTS[engine.namespace]!;
    const hello = { versionMin: 1, versionMax: 1, features: 0, name: "double", manifest };
    this.#send(
      engine,
      engine.request(
        (output, id) => encodeHelloRequest(output, id, hello),
        () => undefined,
      ),
    );
    return engine;
  }

  /** A slot handed out for writing is nobody else's, one for reading is nobody's to write. */
  #checkAlone(owner: EngineDouble, span: Span): void {
    for (const engine of this.#engines) {
      if (engine.dead) continue;
      for (const other of engine.spans) {
        const clash = (span.writing || other.writing) && overlap(span, other);
        must(!clash, "nobody else writes or reads where a slot is written");
      }
    }
    must(!owner.dead, "the dead are handed nothing");
  }

  #send(engine: EngineDouble, bytes: Uint8Array): void {
    const damage = this.#damage;
    if (damage !== null) {
      bytes[damage.at % bytes.length]! ^= damage.bits;
      engine.doubt();
    }
    const cut = this.#cut % (bytes.length + 1);
    this.#damage = null;
    this.#cut = 0;
    engine.connection.receive(bytes.subarray(0, cut));
    engine.connection.receive(bytes.subarray(cut));
    if (engine.connection.closed) this.#leave(engine);
  }

  #ask(engine: EngineDouble, encode: Parameters<EngineDouble["request"]>[0]): void {
    this.#send(
      engine,
      engine.request(encode, () => undefined),
    );
  }

  /** The socket is gone; the process may live on and write where it was writing. */
  #leave(engine: EngineDouble): void {
    if (engine.over) return;
    engine.over = true;
    engine.connection.close();
    engine.connection.greeted?.holder.abandon();
  }

  #die(engine: EngineDouble): void {
    if (engine.dead) return;
    this.#leave(engine);
    for (const span of engine.spans) engine.mustBeWhole(span);
    engine.dead = true;
    engine.spans.length = 0;
    engine.connection.greeted?.holder.buried();
  }

  /** Fills the engine's batch with neighbours of one path; answers the seeds of their bytes. */
  #name(engine: EngineDouble): (index: number) => bigint {
    const script = this.#script;
    const { blocks, namespace } = engine;
    const first = script.below(DIGESTS);
    blocks.count = 1 + script.below(6);
    blocks.layer = LAYERS[script.below(4) === 0 ? 1 : 0]!;
    const isPath = script.below(8) !== 0;
    for (let i = 0; i < blocks.count; i++) {
      const number = (first + i) % DIGESTS;
      blocks.digests.fill(1 + number, 32 * i, 32 * i + 32);
      blocks.parents.fill(isPath ? number : script.u8() % 20, 32 * i, 32 * i + 32);
      blocks.bytes[i] = SIZES[script.below(4) === 0 ? script.below(SIZES.length) : 0]!;
      blocks.flags[i] = 0;
      blocks.aliasLo[i] = 0;
      blocks.aliasHi[i] = 0;
      if (script.below(4) !== 0) continue;
      blocks.flags[i] = script.below(4);
      if ((blocks.flags[i]! & 2) !== 0) blocks.aliasLo[i] = 1 + script.below(5);
    }
    const { layer } = blocks;
    return (i) =>
      BigInt((((first + i) % DIGESTS) * 2 + namespace) * 2 + (layer === LAYERS[1] ? 1 : 0));
  }

  /** Slots of its own for the most part, else of anybody, in any state. */
  #pick(engine: EngineDouble, writing: boolean): Span[] {
    const script = this.#script;
    const own = engine.spans.filter((span) => span.writing === writing);
    // What it holds beyond what it knows cannot be told apart: it names each slot once.
    if (engine.isOwed) return own.slice(0, 1);
    const all = this.#engines.flatMap(({ spans }) => spans);
    const from = script.below(6) === 0 ? all : own;
    if (from.length === 0) return [];
    return Array.from({ length: 1 + script.below(4) }, () => script.oneOf(from));
  }

  readonly #acts: readonly ((engine: EngineDouble) => void)[] = [
    (engine) => this.#reserve(engine),
    (engine) => this.#reserve(engine),
    (engine) => this.#reserve(engine),
    (engine) => this.#commit(engine),
    (engine) => this.#commit(engine),
    (engine) => this.#commit(engine),
    (engine) => this.#acquire(engine),
    (engine) => this.#acquire(engine),
    (engine) => this.#send(engine, engine.giveBack(Op.abort, this.#pick(engine, true))),
    (engine) => this.#send(engine, engine.giveBack(Op.release, this.#pick(engine, false))),
    (engine) => this.#send(engine, engine.giveBack(Op.release, this.#pick(engine, false))),
    (engine) => this.#look(engine),
    (engine) => this.#notice(engine),
    (engine) => this.#converse(engine),
    (engine) => this.#alias(engine),
    () => {
      this.#damage = { at: this.#script.u8(), bits: 1 << this.#script.below(8) };
    },
    () => {
      this.#cut = this.#script.u8();
    },
    (engine) => this.#leave(engine),
    () => this.#die(this.#script.oneOf(this.#engines)),
    () => this.#scribble(this.#script.oneOf(this.#engines)),
    (engine) => {
      engine.room = this.#script.u8();
    },
    (engine) => {
      engine.room = Number.POSITIVE_INFINITY;
      engine.connection.drained();
      if (engine.connection.closed) this.#leave(engine);
    },
    () => {
      this.#stage.draining = this.#script.below(4) === 0;
    },
    (engine) => {
      engine.doubt();
      const bytes = Uint8Array.from({ length: this.#script.below(40) }, () => this.#script.u8());
      this.#send(engine, bytes);
    },
  ];

  #reserve(engine: EngineDouble): void {
    const seedOf = this.#name(engine);
    this.#send(engine, engine.reserve(sessionOf(this.#script.u8()), seedOf));
  }

  #commit(engine: EngineDouble): void {
    const spans = this.#pick(engine, true);
    const how = this.#script.below(8);
    this.#send(
      engine,
      engine.commit(spans, () => (how === 0 ? 2 : how < 4 ? 1 : 0)),
    );
  }

  #acquire(engine: EngineDouble): void {
    const seedOf = this.#name(engine);
    const choice = this.#script.u8();
    const tiers = (choice & 0x30) === 0 ? choice & 15 : 0;
    const options = { tiers, deadlineMs: choice, stopAtMiss: (choice & 0x40) !== 0 };
    this.#send(engine, engine.acquire(options, seedOf));
  }

  #look(engine: EngineDouble): void {
    this.#name(engine);
    const kind = this.#script.below(5);
    const items = new Uint8Array(32 * 64);
    if (kind === 3)
      this.#ask(engine, (out, id) => encodeMatchRequest(out, id, { tiers: 0 }, engine.blocks));
    else if (kind === 4)
      this.#ask(engine, (out, id) => encodePingRequest(out, id, new Uint8Array(8), true));
    else {
      for (let i = 0; i < 8; i++) items[8 * i] = 1 + (i % 5);
      const count = this.#script.below(64);
      const request = { kind: kind as 0 | 1 | 2, layer: engine.blocks.layer, count, items };
      this.#ask(engine, (out, id) => encodeIdentifyRequest(out, id, request));
    }
  }

  #notice(engine: EngineDouble): void {
    this.#name(engine);
    const { blocks } = engine;
    const isStored = this.#script.below(3) !== 0;
    const encode = isStored ? encodeGpuStoredRequest : encodeGpuEvictedRequest;
    this.#ask(engine, (out, id) => encode(out, id, blocks));
  }

  #converse(engine: EngineDouble): void {
    this.#name(engine);
    const { blocks } = engine;
    const session = sessionOf(this.#script.u8());
    const kind = this.#script.below(5);
    blocks.count = 1;
    if (kind < 2)
      this.#ask(engine, (out, id) => encodeSessionCommitRequest(out, id, { session }, blocks));
    else if (kind === 4) {
      const max = this.#script.below(4);
      const page = { session: max === 0 ? session : 0n, after: this.#script.below(8), max };
      this.#ask(engine, (out, id) => encodeSessionListRequest(out, id, page));
    } else {
      const op = kind === 2 ? Op.sessionRelease : Op.sessionStatus;
      this.#ask(engine, (out, id) => sessionRequests[op].encode(out, id, { session }));
    }
  }

  #alias(engine: EngineDouble): void {
    this.#name(engine);
    const kind = this.#script.below(2) as 0 | 1;
    const aliases = new Uint8Array(32 * engine.blocks.count);
    for (let i = 0; i < engine.blocks.count; i++) aliases[32 * i] = this.#script.below(6);
    this.#ask(engine, (out, id) =>
      encodeAliasRequest(out, id, { kind }, { ...engine.blocks, aliases }),
    );
  }

  /** An engine writes where it may still write, also after its line is gone. */
  #scribble(engine: EngineDouble): void {
    for (const span of engine.spans) {
      if (!span.writing) continue;
      this.#stage.region.fill(span.offset, span.bytes, 0xbadn);
      span.spoilt = true;
    }
  }
}

function generate(random: Random): Uint8Array {
  return Uint8Array.from({ length: 20 + randomBelow(random, 400) }, () => random.u32() & 0xff);
}

/** Several engines with one agent: what they hold stays theirs, and nothing is left behind. */
export function conversations(): Target {
  const lines = new Map<Connection, EngineDouble>();
  const stage = new Stage((connection) => {
    const bytes = connection.takePending();
    lines.get(connection)?.take(bytes);
    return bytes.length;
  });
  return {
    name: "conversations",
    corpus: [new Uint8Array(64), Uint8Array.from({ length: 256 }, (_, i) => (i * 37) & 0xff)],
    inputBytesMax: 2048,
    generate,
    async run(input, saw) {
      lines.clear();
      stage.reset();
      await new Conversation(stage, input, saw, lines).play();
    },
    close: () => stage[Symbol.asyncDispose](),
  };
}
