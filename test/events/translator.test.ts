import { expect, test } from "bun:test";
import fc from "fast-check";
import {
  decodeEngineBatch,
  type IngestChange,
  mediaHash,
  noCounts,
  saltSeed,
  Translator,
} from "../../src/events/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { RESIDENCY_TIERS, type ResidencyTier } from "../../src/observability/activity/index.ts";
import { describeNative } from "../support/index.ts";
import { batchOf, storedMap } from "./examples.ts";
import { localHash, localHashes, sequenceHashes } from "./literal-hashes.ts";

const BLOCK = 4;

/** Sequence hashes by tier after all changes. */
class Picture {
  readonly held = new Map<ResidencyTier, Set<bigint>>();

  apply(changes: readonly IngestChange[]): void {
    for (const { change } of changes) {
      if (change.kind === "cleared") this.held.clear();
      else if (change.kind === "stored")
        for (const hash of change.hashes) this.of(change.tier).add(hash);
      else for (const hash of change.hashes) this.of(change.tier).delete(hash);
    }
  }

  of(tier: ResidencyTier): Set<bigint> {
    const set = this.held.get(tier) ?? new Set();
    this.held.set(tier, set);
    return set;
  }
}

function rank({ knownBlocksMax = 1_000 } = {}) {
  const counts = noCounts();
  const native = loadNative();
  const translator = new Translator({ native, blockTokens: BLOCK, knownBlocksMax }, counts);
  const picture = new Picture();
  const tell = (...events: unknown[]): readonly IngestChange[] => {
    const batch = decodeEngineBatch(batchOf(events));
    if (!batch.ok) throw new Error(batch.why);
    const changes = translator.apply(batch.value.events);
    picture.apply(changes);
    return changes;
  };
  const held = (tier: ResidencyTier = "device") => [...picture.of(tier)];
  const dropped = () =>
    Object.fromEntries(Object.entries(counts.dropped).filter(([, count]) => count > 0));
  return { tell, held, dropped, translator };
}

function upTo(count: number): number[] {
  return Array.from({ length: count }, (_, i) => i + 1);
}

/** Sequence hashes of tokens 1 to `count`. */
function chain(count: number, seed?: bigint): bigint[] {
  const options = seed === undefined ? {} : { seed };
  return [...sequenceHashes(localHashes(Uint32Array.from(upTo(count)), BLOCK, options))];
}

const removed = (hashes: readonly unknown[], members: Readonly<Record<string, unknown>> = {}) => ({
  ...{ type: "BlockRemoved", block_hashes: hashes, medium: "GPU" },
  ...members,
});

interface LiteralBlock {
  readonly parent: number | null;
  readonly copies: [number, number, number];
  /** Possible copies on the device. */
  perhaps: number;
  /** All blocks before it were stored, too, at some time. */
  isPlaced: boolean;
}

/** A translator's state, literally: by names and without bounds. */
class LiteralBook {
  readonly #blocks = new Map<number, LiteralBlock>();
  #isComplete = false;

  get isComplete(): boolean {
    return this.#isComplete && !this.#hasDoubts;
  }

  get #hasDoubts(): boolean {
    return [...this.#blocks.values()].some(
      ({ copies, perhaps }) => copies[0] < Math.min(1, perhaps),
    );
  }

  clear(): void {
    this.#blocks.clear();
    this.#isComplete = true;
  }

  store(names: readonly number[], first: number | null, tier: number): void {
    let parent = first;
    if (first !== null && !this.#blocks.get(first)?.isPlaced) this.#isComplete = false;
    else if (first !== null && tier === 0) this.#prove(first);
    const mayHold = (name: number) => {
      const block = this.#blocks.get(name);
      return block !== undefined && block.copies[0] + block.perhaps > 0;
    };
    const mayBeAgain = first === null && tier === 0 && (!this.#isComplete || names.every(mayHold));
    for (const name of names) {
      const fresh = { parent, copies: [0, 0, 0], perhaps: 0, isPlaced: false };
      const block = this.#blocks.get(name) ?? (fresh as LiteralBlock);
      this.#blocks.set(name, block);
      if (mayBeAgain && block.copies[0] > 0) block.perhaps++;
      else block.copies[tier as 0]++;
      parent = name;
    }
    for (let isNew = true; isNew; ) {
      isNew = false;
      for (const block of this.#blocks.values()) {
        const before = block.parent === null ? null : this.#blocks.get(block.parent);
        if (block.isPlaced || (before !== null && !before?.isPlaced)) continue;
        block.isPlaced = true;
        isNew = true;
      }
    }
  }

  remove(names: readonly number[], tier: number): void {
    for (const name of names) {
      const block = this.#blocks.get(name);
      if (block !== undefined && block.copies[tier as 0] > 0) block.copies[tier as 0]--;
      else if (tier === 0 && block !== undefined && block.perhaps > 0) block.perhaps--;
      for (let at: number | null = name; at !== null; ) at = this.#forget(at);
    }
  }

  #prove(last: number): void {
    if (this.#isComplete && !this.#hasDoubts) return;
    for (let name: number | null = last; name !== null; ) {
      const block: LiteralBlock = this.#blocks.get(name)!;
      const { copies, perhaps } = block;
      if (copies[0] === 0 && (perhaps > 0 || !this.#isComplete)) {
        copies[0] = 1;
        block.perhaps = Math.max(0, perhaps - 1);
      }
      name = block.parent;
    }
  }

  held(tier: number): number[] {
    return [...this.#blocks]
      .filter(([, { copies, isPlaced }]) => isPlaced && copies[tier as 0] > 0)
      .map(([name]) => name);
  }

  /** A waiting block without copies and children is removed, then its parent. */
  #forget(name: number): number | null {
    const block = this.#blocks.get(name);
    const isNeeded = [...this.#blocks.values()].some(
      ({ parent, isPlaced }) => parent === name && !isPlaced,
    );
    if (block === undefined || block.isPlaced || isNeeded) return null;
    if (block.copies.some((copies) => copies > 0)) return null;
    this.#blocks.delete(name);
    return block.parent;
  }
}

const two = { block_hashes: [7n, 8n], token_ids: upTo(8) };

describeNative("translation of engine events", () => {
  test("all versions of vLLM with positional fields", () => {
    const fields = [[7n, 8n], null, upTo(8), 4, null, "GPU", null, [null, null], 0];
    const rest = ["full_attention", null];
    for (let length = 5; length <= 11; length++) {
      const { tell, held, dropped } = rank();
      tell(["BlockStored", ...[...fields, ...rest].slice(0, length)]);
      expect(held()).toEqual(chain(8));
      expect(dropped()).toEqual({});
    }
  });

  test("SGLang: page by page, signed hashes, a short last page, a salt in an odd place", () => {
    const { tell, held, dropped } = rank();
    const changes = tell(
      ["AllBlocksCleared"],
      ["BlockStored", [-7n], null, [1, 2, 3, 4], 4, null, "GPU"],
      ["BlockStored", [-8n], -7n, [5, 6, 7, 8], 4, null, "GPU"],
      ["BlockStored", [-9n], -8n, [9, 10], 2, null, "GPU"],
    );
    expect(held()).toEqual(chain(8));
    expect(dropped()).toEqual({ partial_block: 1 });
    // Pages of one run are one change.
    expect(changes.map(({ change }) => change.kind)).toEqual(["cleared", "stored"]);
    expect([...changes[1]!.tokens!]).toEqual(upTo(8));
    tell(["BlockRemoved", [-8n, -9n], "GPU"]);
    expect(held()).toEqual(chain(4));
    tell(["BlockStored", [-5n], null, [1, 2, 3, 4], 4, null, "GPU", { cache_salt: "t" }]);
    expect(held()).toEqual([...chain(4), ...chain(4, saltSeed(null, "t"))]);
  });

  test("EAGLE pairs count by their first tokens", () => {
    const { tell, held } = rank();
    tell(storedMap({ token_ids: upTo(4).map((token) => [token, token + 1]) }));
    expect(held()).toEqual(chain(4));
  });

  test("a salt is inherited by children, a LoRA is named by each block", () => {
    for (const salt of ["tenant", "dynamo-cache-salt:tenant"]) {
      const { tell, held } = rank();
      tell(
        storedMap({ extra_keys: [["a", salt]], lora_name: "a" }),
        storedMap({
          ...{ block_hashes: [8n], parent_block_hash: 7n, token_ids: [5, 6, 7, 8] },
          ...{ extra_keys: [["a"]], lora_name: "a" },
        }),
      );
      expect(held()).toEqual(chain(8, saltSeed("a", "tenant")));
    }
    const { tell, held, dropped } = rank();
    tell(storedMap({ lora_id: 1 }), storedMap({ lora_name: "", extra_keys: [[""]] }));
    expect(held()).toEqual(chain(4));
    expect(dropped()).toEqual({ unnamed_lora: 1 });
  });

  test("media change a block's own hash, and plain blocks are marked", () => {
    const { tell, held } = rank();
    const changes = tell(storedMap({ ...two, extra_keys: [null, [["pic", 0]]] }));
    const first = chain(4)[0]!;
    const local = localHash(Uint32Array.of(5, 6, 7, 8), 1337n, [mediaHash("pic")]);
    expect(held()).toEqual([first, sequenceHashes(BigUint64Array.of(local), first)[0]!]);
    expect(changes.map(({ isPlain }) => isPlain)).toEqual([false]);
    expect(
      rank()
        .tell(storedMap())
        .map(({ isPlain }) => isPlain),
    ).toEqual([true]);
  });

  test("blocks of more tokens than the native library hashes are skipped", () => {
    const { tell, dropped } = rank();
    for (const size of [70_000, 65_536]) {
      const media = Array.from({ length: 256 }, (_, i) => [`m${i}`, 0]);
      const one = { block_hashes: [1n], token_ids: upTo(size), block_size: size };
      tell(storedMap({ ...one, extra_keys: [media] }));
    }
    expect(dropped()).toEqual({ block_size: 2 });
  });

  test("storage media become tiers; external ones are skipped", () => {
    const tiers = { device: ["GPU", "DEVICE", null], host: ["CPU", "CPU_PINNED", "CPU_TIER1"] };
    const disk = ["CPU_TIER2", "DISK", "NVME", "STORAGE", "FS"];
    for (const [tier, media] of Object.entries({ ...tiers, disk })) {
      for (const medium of media) {
        const { tell, held } = rank();
        tell(storedMap({ medium }));
        expect(held(tier as ResidencyTier)).toEqual(chain(4));
      }
    }
    const { tell, dropped } = rank();
    for (const medium of ["EXTERNAL", "NETWORK", "REMOTE", "SHARED"]) tell(storedMap({ medium }));
    tell(storedMap({ locality: "REMOTE" }), storedMap({ ownership: "kvcr" }));
    tell(storedMap({ medium: "TAPE" }), { type: "AllBlocksCleared", ownership: "kvcr" });
    expect(dropped()).toEqual({ external: 7, unknown_medium: 1 });
  });

  test("groups without every block are skipped, including their removals", () => {
    const { tell, held, dropped } = rank();
    const full = { group_idx: 0, kv_cache_spec_kind: "full_attention" };
    const sliding = { group_idx: 1, kv_cache_spec_kind: "sliding_window" };
    tell(storedMap({ ...two, ...full }), storedMap({ ...two, ...sliding }));
    tell(removed([7n, 8n], { group_idx: 1 }), removed([7n], { group_idx: 5 }));
    expect(held()).toEqual(chain(8));
    expect(dropped()).toEqual({ other_group: 4 });
    tell(removed([8n], { group_idx: 0 }));
    expect(held()).toEqual(chain(4));
  });

  test("a block is resident until its last copy is removed", () => {
    const { tell, held, dropped } = rank();
    const again = { block_hashes: [8n], parent_block_hash: 7n, token_ids: [5, 6, 7, 8] };
    tell(storedMap(two), storedMap(again), removed([8n]));
    expect(held()).toEqual(chain(8));
    tell(removed([8n]));
    expect(held()).toEqual(chain(4));
    tell(removed([8n]));
    expect(dropped()).toEqual({ not_held: 1 });
  });

  test("events that cannot be applied are skipped and counted by reason", () => {
    const { tell, held, dropped } = rank();
    tell(
      storedMap({ parent_block_hash: 7n }),
      storedMap({ block_size: 3, block_hashes: [7n, 8n], token_ids: upTo(7) }),
      storedMap({ token_ids: upTo(8) }),
      storedMap({ token_ids: [], block_size: 0, medium: "CPU" }),
      { type: "BlockStored" },
    );
    expect(held()).toEqual([]);
    expect(dropped()).toEqual({
      ...{ own_parent: 1, block_size: 1, skipped_blocks: 1 },
      ...{ placeholder: 1, unreadable: 1 },
    });
  });

  test("a placeholder is the known block of that name, also if it was removed since", () => {
    const { tell, held } = rank();
    const placeholder = { block_hashes: [8n], token_ids: [], block_size: 0, medium: "CPU" };
    tell(storedMap(two), removed([8n, 7n]), storedMap(placeholder));
    expect([held(), held("host")]).toEqual([[], chain(8).slice(1)]);
    // A child may arrive after its parent was removed: the device still has both.
    tell(storedMap({ block_hashes: [9n], parent_block_hash: 7n, token_ids: [5, 6, 7, 8] }));
    expect(held()).toEqual(chain(8));
  });

  test("blocks above the limit are skipped; removed ones make room", () => {
    const { tell, held, dropped, translator } = rank({ knownBlocksMax: 2 });
    tell(storedMap({ block_hashes: [7n, 8n, 9n], token_ids: upTo(12) }));
    expect(held()).toEqual(chain(8));
    expect(dropped()).toEqual({ too_many: 1 });
    tell(removed([8n]), storedMap({ block_hashes: [5n], token_ids: [9, 9, 9, 9] }));
    expect(held()).toHaveLength(2);
    expect(translator.blocks.known.size).toBe(2);
  });

  test("digests name blocks like numbers do", () => {
    const [a, b] = [new Uint8Array(32).fill(1), new Uint8Array(32).fill(2)];
    const { tell, held } = rank();
    tell(storedMap({ block_hashes: [a, b], token_ids: upTo(8) }), removed([a.slice()]));
    expect(held()).toEqual(chain(8).slice(1));
  });

  test("any history results in the state of a literal model", () => {
    const media = ["GPU", "CPU", "STORAGE"] as const;
    // A tree: prompt `p` shares its first `p` blocks with all of larger numbers.
    const step = fc.record({
      kind: fc.constantFrom("stored", "stored", "stored", "removed", "removed", "cleared"),
      prompt: fc.nat({ max: 3 }),
      from: fc.nat({ max: 4 }),
      count: fc.integer({ min: 1, max: 3 }),
      tier: fc.nat({ max: 2 }),
    });
    const property = fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const { tell, held, dropped, translator } = rank();
      const model = new LiteralBook();
      const nameOf = (prompt: number, block: number) =>
        (block < prompt ? 0 : prompt) * 100 + block + 1;
      const tokensOf = (prompt: number, block: number) => {
        const name = nameOf(prompt, block);
        return [name, name + 1, name + 2, name + 3];
      };
      const hashOf = (prompt: number, block: number) => {
        const tokens = Array.from({ length: block + 1 }, (_, at) => tokensOf(prompt, at)).flat();
        return sequenceHashes(localHashes(Uint32Array.from(tokens), BLOCK)).at(-1)!;
      };
      const hashes = new Map<number, bigint>();
      for (const { kind, prompt, from, count, tier } of steps) {
        const blocks = Array.from({ length: count }, (_, at) => from + at);
        const medium = media[tier]!;
        if (kind === "cleared") {
          if (count !== 1) continue;
          model.clear();
          tell({ type: "AllBlocksCleared" });
          continue;
        }
        const names = blocks.map((block) => nameOf(prompt, block));
        for (const block of blocks) hashes.set(nameOf(prompt, block), hashOf(prompt, block));
        if (kind === "removed") {
          tell(removed(names, { medium }));
          model.remove(names, tier);
          continue;
        }
        const parent = from === 0 ? null : nameOf(prompt, from - 1);
        const token_ids = blocks.flatMap((block) => tokensOf(prompt, block));
        const members = { block_hashes: names, parent_block_hash: parent, token_ids, medium };
        tell(storedMap(members));
        model.store(names, parent, tier);
      }
      for (const [place, tier] of RESIDENCY_TIERS.entries()) {
        const expected = model.held(place).map((name) => hashes.get(name)!);
        expect(held(tier).sort()).toEqual(expected.sort());
      }
      expect(translator.isComplete).toBe(model.isComplete);
      expect(Object.keys(dropped()).filter((why) => why !== "not_held")).toEqual([]);
    });
    fc.assert(property, { numRuns: 300 });
  });
});
