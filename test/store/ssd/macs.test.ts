import { expect, test } from "bun:test";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { NamespaceIndex } from "../../../src/core/index.ts";
import {
  decodeHeader,
  encodeHeader,
  HEADER_BYTES,
  type KvbHeader,
} from "../../../src/store/kvb/index.ts";
import { describeNative, withTempDir } from "../../support/index.ts";
import { KeyHolder } from "../mac-kit.ts";
import { BLOCK_BYTES } from "../names.ts";
import { FILE_BYTES, SsdHost, SsdKit, type SsdKitOptions } from "./ssd-kit.ts";

const PLANTED = 1_000;
const KEYED = 1 as NamespaceIndex;
const OPEN = 2;
const names = Array.from({ length: PLANTED }, (_, i) => `block${i}`);
const holder = new KeyHolder();

async function open(host: SsdHost, dir: string, more: Partial<SsdKitOptions> = {}) {
  const kit = await SsdKit.open(host, {
    ...{ dir, slots: 1_100, blocksMax: 4_096, capacityBytes: 3_000 * FILE_BYTES },
    ...more,
  });
  kit.namespaces.setMacKeyId(KEYED, holder.id);
  return kit;
}

/** Stores blocks as an engine with the key does. */
async function store(kit: SsdKit, blocks: readonly string[]): Promise<void> {
  const engine = kit.engine(KEYED, 2_000);
  const handles = engine.reserve(...blocks);
  engine.write(handles);
  const macs = handles.map((handle) => holder.macOf(kit.store.region, handle));
  const outcomes = await engine.commit(handles, undefined, macs);
  expect(outcomes.filter((outcome) => outcome === "ok")).toHaveLength(blocks.length);
  await kit.settled();
}

/** Edits a block's file and corrects its checksums. */
function edit(path: string, change: (header: KvbHeader, payload: Uint8Array) => KvbHeader): void {
  const file = new Uint8Array(readFileSync(path));
  const decoded = decodeHeader(file.subarray(0, HEADER_BYTES));
  if (!decoded.ok) throw new Error(decoded.why);
  const payload = file.subarray(HEADER_BYTES, HEADER_BYTES + BLOCK_BYTES);
  const header = change(decoded.header, payload);
  const payloadChecksum = Bun.hash.xxHash3(payload);
  encodeHeader({ ...header, payloadChecksum }, file.subarray(0, HEADER_BYTES));
  writeFileSync(path, file);
}

/** Reads blocks from SSD. Returns those that a reader with the key accepts. */
async function accepted(kit: SsdKit, blocks: readonly string[]): Promise<string[]> {
  const engine = kit.engine(KEYED, 2_000);
  const handles = await engine.fetch(blocks, { deadlineMs: 60_000 });
  const held = handles.filter(({ outcome }) => outcome === "ok");
  const good = held.filter((handle) => holder.accepts(kit.store.region, handle, handle.mac));
  engine.release(held);
  return good.map(({ name }) => name);
}

describeNative("files of a namespace with a key", () => {
  for (const [who, macKeys] of [
    ["without the key", new Map()],
    ["with the key", holder.keys],
  ] as const) {
    test(`1,000 edited files with correct checksums: 0 accepted of an agent ${who}`, async () => {
      await withTempDir(async (dir) => {
        await using host = new SsdHost();
        {
          await using kit = await open(host, dir);
          await store(kit, names);
          for (const name of names) {
            edit(kit.fileOf(name), (header, payload) => {
              payload[7] = payload[7]! ^ 1;
              return header;
            });
          }
        }
        // An attacker with access to files may delete the index, which is then rebuilt from the
        // files.
        rmSync(join(dir, "index"), { recursive: true });
        await using kit = await open(host, dir, { macKeys });
        expect(kit.report.blocks).toBe(PLANTED);
        expect(await accepted(kit, names)).toEqual([]);
        if (macKeys.size > 0) expect(kit.store.snapshot().ramBlocks).toBe(0);
      });
    });
  }

  test("the namespaces with a key are known after a restart, before any HELLO", async () => {
    await withTempDir(async (dir) => {
      await using host = new SsdHost();
      {
        await using kit = await open(host, dir);
        await store(kit, ["a", "b"]);
        edit(kit.fileOf("a"), (header) => ({ ...header, mac: null }));
      }
      await using kit = await SsdKit.open(host, { dir, slots: 8 });
      expect(kit.namespaces.macKeyIdOf(KEYED)).toBe(holder.id);
      expect(kit.namespaces.macKeyIdOf(OPEN as NamespaceIndex)).toBeNull();
      expect(await kit.engine(KEYED).load("a", "b")).toEqual(["miss", "ok"]);
    });
  });

  test("blocks with a correct MAC are readable after a restart, with or without key", async () => {
    await withTempDir(async (dir) => {
      await using host = new SsdHost();
      const some = names.slice(0, 20);
      {
        await using kit = await open(host, dir);
        await store(kit, some);
        const { header } = decodeHeader(
          new Uint8Array(readFileSync(kit.fileOf("block0"))).subarray(0, HEADER_BYTES),
        ) as { header: KvbHeader };
        expect(header.mac).not.toBeNull();
      }
      for (const macKeys of [new Map(), holder.keys]) {
        await using kit = await open(host, dir, { macKeys });
        expect(await accepted(kit, some)).toEqual(some);
        await kit.settled();
      }
    });
  });

  test("an old file is a miss in a namespace with a key and a hit in one without", async () => {
    await withTempDir(async (dir) => {
      await using host = new SsdHost();
      {
        await using kit = await open(host, dir);
        await store(kit, ["keyed"]);
        expect(await kit.engine(OPEN).put("open")).toEqual(["ok"]);
        await kit.settled();
        edit(kit.fileOf("keyed"), (header) => ({ ...header, mac: null }));
        const version = (name: string) => readFileSync(kit.fileOf(name)).readUInt32LE(8);
        expect([version("keyed"), version("open")]).toEqual([1, 1]);
      }
      await using kit = await open(host, dir);
      expect(await kit.engine(KEYED).load("keyed")).toEqual(["miss"]);
      expect(await kit.engine(OPEN).load("open")).toEqual(["ok"]);
    });
  });
});
