import { openRdma, type Rdma } from "../../../src/native/index.ts";
import { RdmaTransport } from "../../../src/peers/index.ts";
import type { TransportMaker } from "./contract-kit.ts";
import { LINK_SETTINGS, rdmaLimitsOf, verbsOptions } from "./rdma-kit.ts";

/** Over the library of `HEARTH_TEST_VERBS` and this host's devices, or else over the stand-in. */
export const maker: TransportMaker = {
  name: "rdma",
  make({ trust, clock, log, limits, native }) {
    let rdma: Rdma | null = null;
    const transport = new RdmaTransport({
      ...{ trust, clock, log, rails: 1, settings: LINK_SETTINGS },
      rdmaOf: (region) => {
        rdma = openRdma(native, verbsOptions(region));
        return rdma;
      },
      limits: rdmaLimitsOf(limits),
    });
    // Whoever opened the devices closes them, after those who use them.
    const close = transport[Symbol.asyncDispose].bind(transport);
    transport[Symbol.asyncDispose] = async () => {
      await close();
      await rdma?.[Symbol.asyncDispose]();
    };
    return transport;
  },
};
