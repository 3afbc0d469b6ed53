import { afterAll } from "bun:test";
import { join } from "node:path";
import { tempDir } from "../../support/index.ts";
import { transportContract } from "./contract.ts";
import { meetIn } from "./rdma-kit.ts";

afterAll(meetIn(tempDir()));

await transportContract(join(import.meta.dir, "rdma-maker.ts"));
