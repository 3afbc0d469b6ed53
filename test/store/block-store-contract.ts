import { describe, expect, test } from "bun:test";
import { LAYER_ALL } from "../../src/core/index.ts";
import { BLOCK_BYTES, type BlockName, chain } from "./names.ts";
import { type Handle, hexOf, type StoreEngine } from "./store-engine.ts";

/** A store with room for `slots` blocks of `BLOCK_BYTES` in RAM, and accessors for its state. */
export interface ContractStore extends AsyncDisposable {
  readonly blockBytesMax: number;
  engine(namespace?: number, handlesMax?: number): StoreEngine;
  /** Ends all engines, then throws if a slot or a reference is left. */
  expectNothingLeft(): void;
}

const RAM = 2;
const SSD = 4;

/** The contract suite of `BlockStore`, see tiered-store.ts. */
export function blockStoreContract(
  kind: string,
  open: (slots: number) => ContractStore | Promise<ContractStore>,
): void {
  /** Runs a test with two engines of one namespace and one of another. */
  function it(
    name: string,
    run: (engines: Record<"writer" | "reader" | "stranger", StoreEngine>) => Promise<void>,
    slots = 8,
  ): void {
    test(name, async () => {
      await using store = await open(slots);
      await run({ writer: store.engine(1), reader: store.engine(1), stranger: store.engine(2) });
      store.expectNothingLeft();
    });
  }

  describe(`${kind}: a written block`, () => {
    it("is invisible before its commit and visible to its namespace afterwards", async ({
      writer,
      reader,
    }) => {
      const [slot] = writer.reserve("a");
      expect(slot).toMatchObject({ outcome: "ok", capacity: 8192 });
      expect(reader.match(["a"])).toEqual([0, 0]);
      expect(reader.acquire(["a"])[0]!.outcome).toBe("miss");
      expect(writer.acquire(["a"])[0]!.outcome).toBe("miss");
      writer.write([slot!]);
      expect(reader.acquire(["a"])[0]!.outcome).toBe("miss");
      expect(await writer.commit([slot!])).toEqual(["ok"]);
      expect(reader.match(["a"])).toEqual([1, RAM]);
      expect(reader.get("a")).toEqual(["ok"]);
      expect(writer.get("a")).toEqual(["ok"]);
    });

    it("is acquired with its length and the checksum of its bytes", async ({ writer, reader }) => {
      const handles = writer.reserve("a", { name: "b", bytes: 8192 }, { name: "c", bytes: 4097 });
      writer.write(handles);
      const sums = writer.checksumsOf(handles);
      expect(await writer.commit(handles)).toEqual(["ok", "ok", "ok"]);
      const read = reader.acquire(["a", "b", "c"]);
      expect(read.map(({ bytes }) => bytes)).toEqual([BLOCK_BYTES, 8192, 4097]);
      expect(read.map(({ checksum }) => checksum)).toEqual(sums);
      expect(read.map((handle) => reader.proves(handle))).toEqual([true, true, true]);
      expect(reader.release(read)).toEqual(["ok", "ok", "ok"]);
    });

    it("is accepted only if the writer's checksum is correct", async ({ writer, reader }) => {
      const handles = writer.reserve("right", "wrong");
      writer.write(handles);
      const [right, other] = writer.checksumsOf(handles);
      expect(await writer.commit(handles, [right!, other! ^ 1n])).toEqual(["ok", "corrupt"]);
      expect(reader.get("right", "wrong")).toEqual(["ok", "miss"]);
      expect(writer.commit(handles)).resolves.toEqual(["stale", "stale"]);
      expect(await writer.put("wrong")).toEqual(["ok"]);
    });

    it("is verified on another thread if it is large, each frame as a whole", async ({
      writer,
      reader,
    }) => {
      const specs = ["a", "a/b", "a/b/c"].map((name) => ({ name, bytes: 200_000 }));
      const handles = writer.reserve(...specs);
      writer.write(handles);
      const sums = writer.checksumsOf(handles);
      const committed = writer.commit(handles, [sums[0]!, sums[1]! + 1n, sums[2]!]);
      expect(reader.match(["a"])).toEqual([0, 0]);
      // While its bytes are hashed, no call may change a slot.
      expect(writer.abort(handles)).toEqual(["stale", "stale", "stale"]);
      expect(await writer.commit(handles)).toEqual(["stale", "stale", "stale"]);
      expect(await committed).toEqual(["ok", "corrupt", "ok"]);
      expect(reader.get("a", "a/b", "a/b/c")).toEqual(["ok", "miss", "ok"]);
    }, 128);

    it("is `present` if it is stored and `pending` while it is written", async ({
      writer,
      reader,
    }) => {
      const [first, again] = writer.reserve("a", "a");
      expect([first!.outcome, again!.outcome]).toEqual(["ok", "pending"]);
      expect(reader.reserve("a")[0]!.outcome).toBe("pending");
      writer.write([first!]);
      await writer.commit([first!]);
      expect(reader.reserve("a")[0]!.outcome).toBe("present");
      expect(reader.holder.held).toBe(0);
    });

    it("leaves no entry after an abort", async ({ writer, reader }) => {
      const handles = writer.reserve("a", "a/b");
      expect(writer.holder.held).toBe(2);
      expect(writer.abort(handles)).toEqual(["ok", "ok"]);
      expect(writer.abort(handles)).toEqual(["stale", "stale"]);
      expect(await writer.commit(handles)).toEqual(["stale", "stale"]);
      expect(writer.holder.held).toBe(0);
      expect(reader.get("a", "a/b")).toEqual(["miss", "miss"]);
      expect(await reader.put("a", "a/b")).toEqual(["ok", "ok"]);
    });

    it("needs neither a stored parent nor one that arrives later", async ({ writer, reader }) => {
      expect(await writer.put("a/b/c")).toEqual(["ok"]);
      // A block after a gap cannot be found by its prefix and counts as absent.
      expect(reader.match(chain("a/b/c"))).toEqual([0, 0, 0, 0]);
      expect(reader.get("a/b/c")).toEqual(["ok"]);
      expect(await writer.put("a", "a/b")).toEqual(["ok", "ok"]);
      expect(reader.match(chain("a/b/c"))).toEqual([3, RAM, RAM, RAM]);
    });

    test("of 0 bytes is rejected, of more than a slot can hold too large", async () => {
      await using store = await open(4);
      const engine = store.engine();
      const most = store.blockBytesMax;
      const outcomes = (...sizes: number[]) =>
        engine
          .reserve(...sizes.map((bytes, i) => ({ name: `${bytes}-${i}`, bytes })))
          .map(({ outcome }) => outcome);
      expect(outcomes(0, most + 1, 2 ** 32 - 1, 1)).toEqual([
        "rejected",
        "tooLarge",
        "tooLarge",
        "ok",
      ]);
      store.expectNothingLeft();
    });

    it("cannot be its own ancestor", async ({ writer }) => {
      // The block names itself as parent: the digest decides, not the path.
      expect(await writer.put("a")).toEqual(["ok"]);
      expect(writer.reserveUnder("self", "self").outcome).toBe("rejected");
      expect(writer.reserveUnder("x", "y").outcome).toBe("ok");
      expect(writer.reserveUnder("y", "x").outcome).toBe("rejected");
      expect(writer.holder.held).toBe(1);
    });
  });

  describe(`${kind}: an acquired block`, () => {
    it("stays unchanged and in place until its last release", async ({ writer, reader }) => {
      expect(await writer.put("a", "a/b")).toEqual(["ok", "ok"]);
      const first = reader.acquire(["a/b"]);
      const second = reader.acquire(["a/b"]);
      const other = writer.acquire(["a/b"]);
      expect(second[0]).toMatchObject({ slot: first[0]!.slot, offset: first[0]!.offset });
      expect(reader.release(first)).toEqual(["ok"]);
      // Six free slots, and two blocks that must not be evicted while they are read.
      const pressed = await writer.put(...Array.from({ length: 12 }, (_, i) => `x${i}`));
      expect(pressed.slice(0, 6)).toEqual(Array(6).fill("ok"));
      expect([...second, ...other].map((handle) => reader.proves(handle))).toEqual([true, true]);
      expect(reader.release(second)).toEqual(["ok"]);
      expect(reader.release(second)).toEqual(["stale"]);
      expect(reader.proves(other[0]!)).toBe(true);
      expect(writer.release(other)).toEqual(["ok"]);
    });

    it("keeps its ancestors, which are needed to find it", async ({ writer, reader }) => {
      await writer.put("a", "a/b", "a/b/c", "z");
      const held = reader.acquire(["a/b"]);
      for (let i = 0; i < 20; i++) await writer.put(`x${i}`);
      expect(reader.get("a", "a/b", "a/b/c", "z")).toEqual(["ok", "ok", "miss", "miss"]);
      reader.release(held);
    });

    test("counts each slot, and each read of it, up to the cap; the rest is rejected", async () => {
      await using store = await open(8);
      const [engine, other] = [store.engine(1, 3), store.engine(1)];
      await other.put("a", "b", "c", "d");
      const outcomesOf = (handles: Handle[]) => handles.map(({ outcome }) => outcome);
      const twice = engine.acquire(["a", "a"]);
      expect(outcomesOf(twice)).toEqual(["ok", "ok"]);
      expect(outcomesOf(engine.reserve("x", "y"))).toEqual(["ok", "rejected"]);
      expect(outcomesOf(engine.acquire(["b", "nowhere"]))).toEqual(["rejected", "miss"]);
      expect(engine.holder.held).toBe(3);
      engine.release([twice[0]!]);
      expect(outcomesOf(engine.acquire(["b"]))).toEqual(["ok"]);
      // A block that is present takes no slot.
      expect(outcomesOf(engine.reserve("c"))).toEqual(["present"]);
      store.expectNothingLeft();
    });

    it("has stale handles in other sessions and generations, and if not granted", async ({
      writer,
      reader,
    }) => {
      const handles = writer.reserve("a");
      const [handle] = handles as [Handle];
      expect(reader.abort(handles)).toEqual(["stale"]);
      expect(await reader.commit(handles)).toEqual(["stale"]);
      expect(reader.release(handles)).toEqual(["stale"]);
      expect(writer.release(handles)).toEqual(["stale"]);
      const never = { ...handle, slot: 77_777 };
      const older = { ...handle, generation: handle.generation - 1 };
      expect(writer.abort([never, older, { ...handle, slot: 0 }])).toEqual(Array(3).fill("stale"));
      writer.write(handles);
      expect(await writer.commit([handle, handle])).toEqual(["ok", "stale"]);
      const read = reader.acquire(["a"]);
      expect(writer.release(read)).toEqual(["stale"]);
      expect(await reader.commit(read)).toEqual(["stale"]);
      expect(reader.abort(read)).toEqual(["stale"]);
      expect(reader.release([{ ...read[0]!, generation: 0 }])).toEqual(["stale"]);
      // One reference, released twice in one frame: only the first release succeeds.
      expect(reader.release([...read, ...read]).toSorted()).toEqual(["ok", "stale"]);
    });

    it("has a new generation if its slot is reused: the old handle has no effect", async ({
      writer,
    }) => {
      const [old] = writer.reserve("a") as [Handle];
      writer.abort([old]);
      const [next] = writer.reserve("b") as [Handle];
      expect(next.slot).toBe(old.slot);
      expect(next.generation).not.toBe(old.generation);
      expect(writer.abort([old])).toEqual(["stale"]);
      expect(await writer.commit([old])).toEqual(["stale"]);
      writer.write([next]);
      expect(await writer.commit([next])).toEqual(["ok"]);
    }, 1);
  });

  describe(`${kind}: a read`, () => {
    it("continues past misses, or stops at the first and skips the rest", async ({
      writer,
      reader,
    }) => {
      await writer.put("a", "c");
      const outcomes = (stopAtMiss: boolean) => {
        const handles = reader.acquire(["a", "b", "c"], { stopAtMiss });
        reader.release(handles.filter(({ outcome }) => outcome === "ok"));
        return handles.map(({ outcome }) => outcome);
      };
      expect(outcomes(false)).toEqual(["ok", "miss", "ok"]);
      expect(outcomes(true)).toEqual(["ok", "miss", "skipped"]);
      expect(reader.holder.held).toBe(0);
    });

    it("searches only the requested tiers", async ({ writer, reader }) => {
      await writer.put("a");
      expect(reader.acquire(["a"], { tiers: SSD })[0]!.outcome).toBe("miss");
      expect(reader.match(["a"], SSD)).toEqual([0, 0]);
      expect(reader.match(["a"], RAM | SSD)).toEqual([1, RAM]);
    });
  });

  describe(`${kind}: another namespace`, () => {
    it("finds no block of this namespace with any request", async ({ writer, stranger }) => {
      await writer.put({ name: "a", alias: 7n }, "a/b");
      expect(writer.sessionCommit(5n, "a/b")).toBe("ok");
      expect(stranger.match(["a", "a/b"])).toEqual([0, 0, 0]);
      expect(stranger.get("a", "a/b")).toEqual(["miss", "miss"]);
      expect(stranger.alias("a", 8n)).toBe("miss");
      expect(stranger.resolve(7n, LAYER_ALL)).toBeNull();
      expect(stranger.gpuEvicted("a")).toEqual(["miss"]);
      expect(stranger.sessionCommit(5n, "a")).toBe("miss");
      expect(stranger.sessionRelease(5n)).toBe("miss");
      expect(stranger.holder.sessionStatus(5n).known).toBe(false);
      expect(writer.holder.sessionStatus(5n)).toMatchObject({ known: true, blocks: 2 });
    });

    it("gets `full` for a key of this namespace, and stores no child of it", async ({
      writer,
      stranger,
    }) => {
      await writer.put("a");
      const handles = stranger.reserve("a", "a/b");
      expect(handles.map(({ outcome }) => outcome)).toEqual(["full", "full"]);
      expect(stranger.gpuStored("a")).not.toEqual(["present"]);
      expect(writer.get("a")).toEqual(["ok"]);
    });
  });

  describe(`${kind}: names`, () => {
    it("an engine hash resolves to the first block with that hash in its layer", async ({
      writer,
      reader,
    }) => {
      await writer.put({ name: "a", alias: 7n }, "b");
      expect(writer.alias("b", 7n)).toBe("ok");
      expect(writer.alias("b", 7n)).toBe("ok");
      expect(writer.alias("nowhere", 7n)).toBe("miss");
      expect(reader.resolve(7n, LAYER_ALL)).toBe(hexOf("a"));
      expect(reader.resolve(7n, 3)).toBeNull();
      expect(reader.resolve(8n, LAYER_ALL)).toBeNull();
    });
  });

  describe(`${kind}: the end of an engine`, () => {
    const names: BlockName[] = ["a", "a/b"];

    it("releases slots only when its process has exited", async ({ writer, reader }) => {
      await reader.put(...names);
      const read = writer.acquire(names);
      const [half] = writer.reserve("half") as [Handle];
      writer.abandon();
      // The block left the tree, and its slot is not free.
      expect(reader.get("half")).toEqual(["miss"]);
      const slots: number[] = [];
      for (let i = 0; i < 20; i++) slots.push(reader.reserve(`x${i}`)[0]!.slot);
      expect(slots).not.toContain(half.slot);
      expect(slots.filter((slot) => slot !== 0)).toHaveLength(5);
      expect(read.map((handle) => reader.proves(handle))).toEqual([true, true]);
      expect(writer.holder.held).toBe(3);
      writer.die();
      expect(writer.holder.held).toBe(0);
      expect(reader.reserve("y0", "y1", "y2").map(({ outcome }) => outcome)).toEqual([
        "ok",
        "ok",
        "ok",
      ]);
    });

    it("lets another engine write its unfinished blocks again", async ({ writer, reader }) => {
      writer.reserve("a", "a/b");
      writer.abandon();
      expect(await reader.put("a", "a/b")).toEqual(["ok", "ok"]);
      writer.die();
      expect(reader.get("a", "a/b")).toEqual(["ok", "ok"]);
    });

    for (const how of ["abandoned", "dead"]) {
      it(`does not interrupt a commit under way, its engine ${how}`, async ({ writer, reader }) => {
        const specs = ["a", "a/b"].map((name) => ({ name, bytes: 200_000 }));
        const handles = writer.reserve(...specs);
        writer.write(handles);
        const committed = writer.commit(handles);
        if (how === "dead") writer.die();
        else writer.abandon();
        expect(await committed).toEqual(["ok", "ok"]);
        expect(reader.get("a", "a/b")).toEqual(["ok", "ok"]);
        expect(writer.holder.held).toBe(0);
      }, 128);
    }
  });
}
