import { expect, test } from "bun:test";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { kernelRdmaDevices } from "../../src/devices/index.ts";
import { tempDir } from "../support/index.ts";

test("the kernel's RDMA devices by name; none where it knows none", () => {
  const root = tempDir();
  expect(kernelRdmaDevices(root)).toEqual([]);
  for (const name of ["mlx5_1", "mlx5_0"]) {
    mkdirSync(join(root, "sys/class/infiniband", name), { recursive: true });
  }
  expect(kernelRdmaDevices(root)).toEqual(["mlx5_0", "mlx5_1"]);
});
