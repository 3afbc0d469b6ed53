export type * from "./engine-event.ts";
