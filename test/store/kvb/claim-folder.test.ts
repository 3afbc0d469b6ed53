import { expect, test } from "bun:test";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { HearthError, type WorkerId } from "../../../src/core/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import {
  type ClaimedFolder,
  claimFolder,
  type FolderClaim,
  readMachineId,
  SHARDS,
} from "../../../src/store/kvb/index.ts";
import { describeNative, ManualClock, withTempDir } from "../../support/index.ts";

const MACHINE = "0123456789abcdef0123456789abcdef";
const OTHER = "f".repeat(32);

function claim(dir: string, change: Partial<FolderClaim> = {}): ClaimedFolder {
  const worker = "gpu-01" as WorkerId;
  const native = loadNative();
  const clock = new ManualClock();
  return claimFolder({ dir, worker, machine: MACHINE, native, clock, ...change });
}

function refusal(run: () => unknown): HearthError {
  try {
    run();
  } catch (thrown) {
    if (thrown instanceof HearthError) return thrown;
    throw thrown;
  }
  throw new Error("not refused");
}

const ownerOf = (dir: string) => JSON.parse(readFileSync(join(dir, "owner.json"), "utf8"));

function setOwner(dir: string, change: object): void {
  writeFileSync(join(dir, "owner.json"), JSON.stringify({ ...ownerOf(dir), ...change }));
}

describeNative("claiming an SSD folder", () => {
  test("makes it, private, with its shards and its owner", async () => {
    await withTempDir((parent) => {
      const dir = join(parent, "a", "b");
      using folder = claim(dir);
      expect(statSync(dir).mode & 0o777).toBe(0o700);
      expect(readdirSync(dir).sort()).toEqual(
        [...SHARDS, "lock", "owner.json", "quarantine"].sort(),
      );
      expect(statSync(join(dir, "3f")).mode & 0o777).toBe(0o700);
      expect(ownerOf(dir)).toEqual({ format: 1, ...folder.owner });
      expect(folder.owner).toMatchObject({ worker: "gpu-01", machine: MACHINE });
      expect(Number.isNaN(Date.parse(folder.owner.created))).toBe(false);
    });
  });

  test("a claim finds its own folder again, and creates missing parts", async () => {
    await withTempDir((dir) => {
      const { owner } = claimed(dir);
      rmSync(join(dir, "00"), { recursive: true });
      rmSync(join(dir, "quarantine"), { recursive: true });
      const clock = new ManualClock(1_000_000);
      using again = claim(dir, { clock });
      expect(again.owner).toEqual(owner);
      expect(existsSync(join(dir, "00")) && existsSync(join(dir, "quarantine"))).toBe(true);
    });
  });

  test("is refused while another has it, and granted after that", async () => {
    await withTempDir((dir) => {
      const first = claim(dir);
      const error = refusal(() => claim(dir));
      expect(error.code).toBe("SSD_IN_USE");
      expect(error.text).toContain(`${dir} is used by another process: stop`);
      first[Symbol.dispose]();
      claim(dir)[Symbol.dispose]();
    });
  });

  test("a folder of another worker or machine is refused with a message", async () => {
    await withTempDir((dir) => {
      claimed(dir);
      const worker = refusal(() => claim(dir, { worker: "gpu-02" as WorkerId }));
      expect(worker.code).toBe("SSD_FOREIGN");
      expect(worker.text).toBe(
        `${dir} belongs to worker gpu-01, this is gpu-02: to take it over with its blocks ` +
          `remove ${dir}/owner.json, else use another folder`,
      );
      const machine = refusal(() => claim(dir, { machine: OTHER }));
      expect(machine.code).toBe("SSD_FOREIGN");
      expect(machine.message).toContain(`of machine ${MACHINE}, this is ${OTHER}`);
    });
  });

  test("a refused claim holds no lock; removing owner.json takes the folder over", async () => {
    await withTempDir((dir) => {
      claimed(dir);
      expect(refusal(() => claim(dir, { machine: OTHER })).code).toBe("SSD_FOREIGN");
      rmSync(join(dir, "owner.json"));
      using folder = claim(dir, { machine: OTHER });
      expect(folder.owner.machine).toBe(OTHER);
    });
  });

  test("where a machine has no id, the worker's name decides", async () => {
    await withTempDir((dir) => {
      claimed(dir);
      claim(dir, { machine: null })[Symbol.dispose]();
      setOwner(dir, { machine: null });
      claim(dir)[Symbol.dispose]();
      const worker = "gpu-02" as WorkerId;
      expect(refusal(() => claim(dir, { worker })).code).toBe("SSD_FOREIGN");
    });
  });

  for (const [what, text] of [
    ["empty", ""],
    ["cut off", '{"format": 1, "wor'],
    ["a list", "[]"],
    ["null", "null"],
    ["of a later format", '{"format": 2, "worker": "gpu-01"}'],
    ["without a worker", '{"format": 1, "machine": null, "created": "x"}'],
    ["with an empty worker", '{"format": 1, "worker": "", "machine": null, "created": "x"}'],
    ["without a machine", '{"format": 1, "worker": "gpu-01", "created": "x"}'],
    ["without a time", '{"format": 1, "worker": "gpu-01", "machine": null}'],
  ]) {
    test(`an owner.json that is ${what} is refused`, async () => {
      await withTempDir((dir) => {
        claimed(dir);
        writeFileSync(join(dir, "owner.json"), text!);
        const error = refusal(() => claim(dir));
        expect(error.code).toBe("SSD_FOREIGN");
        expect(error.text).toContain("the owner of");
        expect(readFileSync(join(dir, "owner.json"), "utf8")).toBe(text!);
      });
    });
  }

  test("a folder with other things in it is refused and left as it is", async () => {
    await withTempDir((dir) => {
      mkdirSync(join(dir, "lost+found"));
      writeFileSync(join(dir, "thesis.txt"), "x");
      const error = refusal(() => claim(dir));
      expect(error.code).toBe("SSD_FOREIGN");
      expect(error.text).toContain("contains thesis.txt");
      expect(readdirSync(dir).sort()).toEqual(["lost+found", "thesis.txt"]);
      rmSync(join(dir, "thesis.txt"));
      claim(dir)[Symbol.dispose]();
    });
  });

  test("a path that is not a folder, or not writable, is refused with a message", async () => {
    await withTempDir((dir) => {
      const file = join(dir, "file");
      writeFileSync(file, "");
      for (const path of [file, join(file, "below")]) {
        const error = refusal(() => claim(path));
        expect(error.code).toBe("SSD_UNAVAILABLE");
        expect(error.text).toContain("ssd_dir");
      }
      if (process.getuid!() === 0) return;
      chmodSync(dir, 0o500);
      expect(refusal(() => claim(dir)).code).toBe("SSD_UNAVAILABLE");
      chmodSync(dir, 0o700);
    });
  });
});

/** Claims a folder and lets go. */
function claimed(dir: string): ClaimedFolder {
  const folder = claim(dir);
  folder[Symbol.dispose]();
  return folder;
}

test("a machine's id is 32 hex digits, or null", async () => {
  await withTempDir((dir) => {
    const path = join(dir, "machine-id");
    expect(readMachineId(path)).toBeNull();
    for (const text of ["", "uninitialized\n", "0123"]) {
      writeFileSync(path, text);
      expect(readMachineId(path)).toBeNull();
    }
    writeFileSync(path, `${MACHINE}\n`);
    expect(readMachineId(path)).toBe(MACHINE);
  });
});
