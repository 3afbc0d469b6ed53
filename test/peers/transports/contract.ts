import { afterAll, beforeAll } from "bun:test";
import { describeNative } from "../../support/index.ts";
import { boundsContract } from "./contract-bounds.ts";
import { distrustContract } from "./contract-distrust.ts";
import { endingsContract } from "./contract-endings.ts";
import { identityContract } from "./contract-identity.ts";
import type { TransportMaker } from "./contract-kit.ts";
import { liesContract } from "./contract-lies.ts";
import { pullsContract } from "./contract-pulls.ts";
import { vanishingContract } from "./contract-vanishing.ts";

/**
 * The promises of the Transport port, over real sockets, certificates and regions. `path`: a file
 * that exports a `maker`; peers that are killed load it in their own process.
 */
export async function transportContract(path: string): Promise<void> {
  const { maker } = (await import(path)) as { maker: TransportMaker };
  describeNative(`the transport ${maker.name}`, () => {
    // An unhandled rejection would crash the agent.
    const unhandled: unknown[] = [];
    const note = (reason: unknown) => void unhandled.push(reason);
    beforeAll(() => void process.on("unhandledRejection", note));
    afterAll(() => {
      process.off("unhandledRejection", note);
      if (unhandled.length > 0) throw new Error("unhandled rejections", { cause: unhandled });
    });
    pullsContract(maker);
    liesContract(maker);
    endingsContract(maker);
    identityContract(maker);
    distrustContract(maker);
    boundsContract(maker);
    vanishingContract(maker, path);
  });
}
