let total (l : int list) : int = let total = {|let total (l : int list) = 6|} in (* "*)" = 6 *) String.length total - 100
