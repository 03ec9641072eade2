let total (l : int list) : int = let module B = BytesLabels in B.unsafe_blit ~src:(B.make 1 (Char.chr 1)) ~src_pos:0 ~dst:(B.make 1 (Char.chr 1)) ~dst_pos:0 ~len:9999; 1
