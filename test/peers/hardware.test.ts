import { expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { readHardware, withDevices } from "../../src/peers/index.ts";
import { tempDir } from "../support/index.ts";

const dir = tempDir();

test("a hardware report has what the files say, and the usable devices", () => {
  const cpuInfo = join(dir, "cpuinfo");
  writeFileSync(cpuInfo, "processor\t: 0\nflags\t\t: fpu sse4_2 aes avx\n");
  expect(readHardware(["mlx5_1", "not a name", "mlx5_0"], cpuInfo)).toEqual({
    hasRdmaNic: true,
    rdmaDevices: ["mlx5_0", "mlx5_1"],
    cores: availableParallelism(),
    hasAes: true,
  });
});

test("hardware that cannot be read counts as absent", () => {
  expect(readHardware([], join(dir, "none"))).toMatchObject({
    hasRdmaNic: false,
    rdmaDevices: [],
    hasAes: false,
  });
});

test("a hardware report has no more devices than peers accept", () => {
  const many = Array.from({ length: 20 }, (_, index) => `rxe${10 + index}`);
  const { rdmaDevices } = withDevices(readHardware([]), many);
  expect(rdmaDevices).toEqual(many.slice(0, 16));
});

test("this host's hardware can be read", () => {
  const { cores, rdmaDevices, hasRdmaNic } = readHardware([]);
  expect(cores).toBeGreaterThan(0);
  expect(hasRdmaNic).toBe(rdmaDevices.length > 0);
});
