"""What papers published, computed anew from packaged programs and put beside their figures."""
