import { describe } from "bun:test";
import { type BusWorld, busBench } from "./bus-bench.ts";
import { messagesContract } from "./messages-contract.ts";
import { outagesContract } from "./outages-contract.ts";
import { requestsContract } from "./requests-contract.ts";

/** The promises of `Bus`, tested on the implementation that `start` opens. */
export function busContract(name: string, start: () => Promise<BusWorld>): void {
  describe(`a bus over ${name}`, () => {
    const bench = busBench(start);
    messagesContract(bench);
    requestsContract(bench);
    outagesContract(bench);
  });
}
