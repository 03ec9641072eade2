external total : int list -> int = "ok\tc5e35411975aef719f04a574b4ff5940\tc5e35411975aef719f04a574b4ff5940"
