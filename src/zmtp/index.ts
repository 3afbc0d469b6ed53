export type * from "./zmtp.ts";
