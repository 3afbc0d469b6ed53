export * from "./control.ts";
export { pairRails, usablePorts } from "./ports.ts";
export * from "./rdma-transport.ts";
